#include "engine/backend/cuda/attention/sm90a.h"

#include "engine/backend/cuda/attention/launch_sm90a.cuh"

namespace engine::backend::cuda {
namespace attention_sm90a {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);
Encode EncodeOf() {
  static const Encode encode = [] {
    constexpr unsigned kSince = 12000;  // the CUDA version that the function has been there from
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, kSince, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(entry);
  }();
  return encode;
}

}  // namespace

CUtensorMap TensorMaps::Make(const AttentionView& view, std::int64_t elements, std::int64_t tokens,
                             std::int64_t heads, std::int64_t samples, const HeadBox& head_box) {
  constexpr std::int64_t kBytes = 2;
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t dims[5] = {size(elements), size(tokens), size(heads), size(p_.kv_heads), size(samples)};
  const cuuint64_t strides[4] = {size(view.token * kBytes), size(view.head * kBytes),
                                 size(view.kv_head * kBytes), size(view.sample * kBytes)};
  const cuuint32_t box[5] = {static_cast<cuuint32_t>(head_box.elements),
                             static_cast<cuuint32_t>(head_box.tokens), 1, 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  const Encode encode = EncodeOf();
  const auto dtype =
      p_.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto swizzle = head_box.elements == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : head_box.elements == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                 : CU_TENSOR_MAP_SWIZZLE_32B;
  const bool made =
      encode != nullptr &&
      encode(&map, dtype, 5, view.data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  if (!made && error_ == cudaSuccess)
    error_ = encode == nullptr ? cudaErrorSymbolNotFound : cudaErrorInvalidValue;
  return map;
}

CUtensorMap TensorMaps::Queries(const AttentionView& view, std::int64_t elements, const HeadBox& box) {
  return Make(view, elements, p_.queries, p_.heads / p_.kv_heads, p_.batch, box);
}
CUtensorMap TensorMaps::Keys(const AttentionView& view, std::int64_t elements, const HeadBox& box) {
  AttentionView keys = view;
  keys.head = elements;  // the stride of a dim of one
  return Make(keys, elements, p_.keys, 1, key_samples_, box);
}

CUtensorMap TensorMaps::Pairs(const HeadBox& box) {
  const std::int64_t of_head = p_.pairs * p_.pairs;
  const std::int64_t group = p_.heads / p_.kv_heads;
  const AttentionView view = {const_cast<void*>(p_.biases), p_.heads * of_head, p_.pairs, group * of_head,
                              of_head};
  return Make(view, p_.pairs, p_.pairs, group, /*samples=*/1, box);
}

namespace {

// A block 32 rows of a head: each of its warps adds every 16th part, in a fixed order, and asks for several at a time.
constexpr int kDistanceWarps = 16;
constexpr int kPartsAtOnce = 8;
__global__ void __launch_bounds__(kDistanceWarps* kWarp)
    DistanceSumsKernel(const __grid_constant__ DistanceSumsParams p) {
  __shared__ float of_warps[kDistanceWarps][kWarp];
  AwaitEarlier();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  for (int first = warp; row < p.rows && first < p.batch * p.parts; first += kPartsAtOnce * kDistanceWarps) {
    float parts[kPartsAtOnce];
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const int part = first + i * kDistanceWarps;
      const int sample = part / p.parts;
      const std::int64_t at = static_cast<std::int64_t>(sample * p.heads + head) * p.parts + part % p.parts;
      parts[i] = part < p.batch * p.parts ? __ldcs(p.sums + at * p.rows + row) : 0.0F;
    }
#pragma unroll
    for (const float part : parts) sum += part;
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || row >= p.rows) return;
#pragma unroll
  for (int other = 1; other < kDistanceWarps; ++other) sum += of_warps[other][lane];
  p.d_biases[static_cast<std::int64_t>(head) * p.biases + row] += sum;
}

}  // namespace

void AddDistanceSums(const DistanceSumsParams& params, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((params.rows + kWarp - 1) / kWarp),
                  static_cast<unsigned>(params.heads));
  Launch(/*early=*/true, DistanceSumsKernel, grid, kDistanceWarps * kWarp, 0, stream, params);
}

Common CommonOf(const Sm90aAttention& a, int tile) {
  const AttentionProblem& p = a.problem;
  Common c{.heads = static_cast<int>(p.heads),
           .kv_heads = static_cast<int>(p.kv_heads),
           .group = static_cast<int>(p.heads / p.kv_heads),
           .queries = static_cast<int>(p.queries),
           .keys = static_cast<int>(p.keys),
           .head = static_cast<int>(p.head),
           .value_head = static_cast<int>(p.value_head),
           .runs = a.runs,
           .causal = p.causal,
           .window = static_cast<int>(p.window),
           .slot_of = a.slot_of,
           .spans = reinterpret_cast<const int2*>(p.spans),
           .scale_log2 = p.scale * kLog2E,
           .softcap = p.softcap,
           .bent_scale = p.softcap > 0 ? p.scale / p.softcap : 0,
           .biases = p.biases,
           .bias_scale = 1 / p.scale,
           .distance = static_cast<int>(p.distance),
           .pairs = static_cast<int>(p.pairs),
           .drop_below_high = p.dropout.below << 16,
           .keep_scale = p.dropout.scale,
           .key_low = p.dropout.key_low,
           .key_high = p.dropout.key_high,
           .first_sample = static_cast<int>(p.dropout.first_sample),
           .first_head = static_cast<int>(p.first_head),
           .logical_heads = static_cast<int>(p.logical_heads),
           .control = p.dropout.control};
  for (std::size_t i = 0; i < static_cast<std::size_t>(a.runs); ++i) {
    c.run[i] = {a.run[i].row, a.run[i].count, a.run[i].position, c.tiles};
    c.tiles += (a.run[i].count + tile - 1) / tile;
  }
  return c;
}

int SectionOf(const AttentionProblem& p, int heads) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;  // about half of L2
  const std::int64_t each = p.keys * (p.head + p.value_head) * 2;
  return EvenSection(kBytes / each, p.batch * p.kv_heads) * heads;
}

int EvenSection(std::int64_t fitting, std::int64_t all) {
  const std::int64_t about = std::clamp<std::int64_t>(fitting, 1, all);
  for (std::int64_t even = about + about / 3; even > about / 2; --even) {
    if (all % even == 0) return static_cast<int>(even);
  }
  return static_cast<int>(about);
}

}  // namespace attention_sm90a

bool HasAttentionSm90a() {
#ifdef ENGINE_SM90A
  return true;
#else
  return false;
#endif
}

namespace attention_sm90a {
namespace {

template <typename T, int kSizes = 0>
cudaError_t Launch(const Sm90aAttention& a, bool backward, cudaStream_t stream) {
  if constexpr (kSizes == std::size(kOwnSizes)) {
    return cudaErrorInvalidValue;
  } else {
    if (&OwnSizesOf(a.problem.head, a.problem.value_head) != &kOwnSizes[kSizes])
      return Launch<T, kSizes + 1>(a, backward, stream);
    return backward ? Backward<T, kSizes>(a, stream) : Forward<T, kSizes>(a, stream);
  }
}

// One sample of a backward pass by itself, with the scratch of the first.
Sm90aAttention SampleOf(const Sm90aAttention& a, std::int64_t sample) {
  constexpr std::int64_t kElementBytes = 2;
  Sm90aAttention one = a;
  AttentionProblem& p = one.problem;
  for (AttentionView* view : {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.dq, &p.dk, &p.dv})
    view->data = static_cast<std::byte*>(view->data) + sample * view->sample * kElementBytes;
  p.lse.data += sample * p.lse.sample;
  if (p.spans != nullptr) p.spans += sample * p.queries * 2;
  p.dropout.first_sample += sample;
  p.batch = 1;
  one.sets_biases = a.sets_biases && sample == 0;
  return one;
}

cudaError_t Launch(const Sm90aAttention& a, bool backward, cudaStream_t stream) {
  return a.problem.dtype == DType::kBF16 ? Launch<__nv_bfloat16>(a, backward, stream)
                                         : Launch<__half>(a, backward, stream);
}

}  // namespace
}  // namespace attention_sm90a

cudaError_t AttentionSm90a(const Sm90aAttention& a, cudaStream_t stream) {
  return attention_sm90a::Launch(a, /*backward=*/false, stream);
}

// Samples add to the biases of pairs one after the other, in launches of their own, so that each sum has one order.
cudaError_t AttentionGradSm90a(const Sm90aAttention& a, cudaStream_t stream) {
  if (a.problem.pairs == 0) return attention_sm90a::Launch(a, /*backward=*/true, stream);
  for (std::int64_t sample = 0; sample < a.problem.batch; ++sample) {
    const cudaError_t error =
        attention_sm90a::Launch(attention_sm90a::SampleOf(a, sample), /*backward=*/true, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace engine::backend::cuda

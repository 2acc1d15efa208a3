// Attention of single queries over caches, of heads of any size, and in float32: a block a query and head, whose warps take keys
// in turns and add up in their order.
#include "engine/backend/cuda/kernels/cached_attention.cuh"
#include "engine/backend/cuda/kernels/early.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kMostOfLane = 16;  // values of a head that a lane has
template <typename T, typename Stored>
__global__ void __launch_bounds__(kThreads) AttendKeys(CachedAttention p) {
  __shared__ float tops[kWarps], sums[kWarps];
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const parts = reinterpret_cast<float*>(shared);  // [warp, U]
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = blockIdx.x;
  const std::int64_t token = row / p.heads;
  const std::int64_t head = row % p.heads;
  const std::int64_t kv = head / (p.heads / p.kv_heads);
  LetNextBegin();
  AwaitEarlier();
  const std::int64_t slot = p.slots[token];
  const std::int64_t position = p.positions[token];
  const Seen seen = SeenBy(p.window, position);
  const T* const q = static_cast<const T*>(p.q) + row * p.width;
  const std::int64_t base = (max(slot, std::int64_t{0}) * p.rows) * p.kv_heads + kv;
  const Stored* const keys = static_cast<const Stored*>(p.keys) + base * p.width;
  const Stored* const values = static_cast<const Stored*>(p.values) + base * p.value_width;
  const std::int64_t fresh = token * p.kv_heads + kv;
  const T* const new_key = static_cast<const T*>(p.k) + fresh * p.width;
  const T* const new_value = static_cast<const T*>(p.v) + fresh * p.value_width;
  if (slot >= 0 && head % (p.heads / p.kv_heads) == 0) KeepToken<T, Stored>(p, token, kv, slot, position);
  const float slope = SlopeOf(p, head);
  float top = kNone;
  float sum = 0;
  float o[kMostOfLane] = {};
  for (std::int64_t j = seen.first + warp; slot >= 0 && j < seen.end; j += kWarps) {
    const bool is_new = j == position;
    const Stored* const key = keys + j % p.rows * p.kv_heads * p.width;
    const Stored* const value = values + j % p.rows * p.kv_heads * p.value_width;
    float dot = 0;
    for (std::int64_t e = lane; e < p.width; e += kWarp)
      dot += ToFloat(q[e]) * ToFloat(is_new ? ToKeep<Stored>(new_key[e]) : key[e]);
    for (int step = kWarp / 2; step > 0; step /= 2) dot += __shfl_xor_sync(kAllLanes, dot, step);
    const float score = Bent<T>(p, dot * p.scale, slope, head, position, j - position);
    const float higher = fmaxf(top, score);
    const float shrink = exp2f(top - higher);
    const float share = exp2f(score - higher);
    sum = sum * shrink + share;
    top = higher;
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      const std::int64_t e = lane + kWarp * i;
      if (e < p.value_width)
        o[i] = o[i] * shrink + share * ToFloat(is_new ? ToKeep<Stored>(new_value[e]) : value[e]);
    }
  }
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const std::int64_t e = lane + kWarp * i;
    if (e < p.value_width) parts[warp * p.value_width + e] = o[i];
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  float all_top = kNone;
  for (int w = 0; w < kWarps; ++w) all_top = fmaxf(all_top, tops[w]);
  float sink = kNone;
  if (p.sinks != nullptr) sink = ToFloat(static_cast<const T*>(p.sinks)[head]) * kLog2E;
  all_top = fmaxf(all_top, sink);
  for (std::int64_t e = threadIdx.x; e < p.value_width; e += kThreads) {
    float all = p.sinks != nullptr ? exp2f(sink - all_top) : 0.0F;
    float value = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float share = exp2f(tops[w] - all_top);
      all += share * sums[w];
      value += share * parts[w * p.value_width + e];
    }
    static_cast<T*>(p.o)[row * p.value_width + e] = FromFloat<T>(slot >= 0 && all > 0 ? value / all : 0.0F);
  }
}

template <typename T, typename Stored>
void AttendAny(const CachedAttention& p, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(kWarps * p.value_width) * sizeof(float);
  Launch(p.samples <= kMostEarlyRows, AttendKeys<T, Stored>, static_cast<unsigned>(p.samples * p.heads),
         kThreads, bytes, stream, p);
}

template <typename T>
void AttendStored(const CachedAttention& p, cudaStream_t stream) {
  p.narrow_cache ? AttendAny<T, E4M3>(p, stream) : AttendAny<T, T>(p, stream);
}

}  // namespace

void LaunchCachedAttentionOfAnySize(const CachedAttention& attention, cudaStream_t stream) {
  switch (attention.dtype) {
    case DType::kBF16:
      return AttendStored<__nv_bfloat16>(attention, stream);
    case DType::kF16:
      return AttendStored<__half>(attention, stream);
    default:
      return AttendStored<float>(attention, stream);
  }
}

}  // namespace engine::backend::cuda

// How attention of sm90a.h is launched.
#include "engine/backend/cuda/attention/sm90a.h"

#include <algorithm>

#include "engine/backend/cuda/attention/backward_sm90a.cuh"
#include "engine/backend/cuda/attention/forward_sm90a.cuh"

namespace engine::backend::cuda {
namespace {

using namespace attention_sm90a;

using Encode = decltype(&cuTensorMapEncodeTiled);
Encode EncodeOf() {
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(entry);
  }();
  return encode;
}

struct MapShape {
  int elements, tokens, group, kv_heads, batch, rows;
};
CUtensorMap MapOf(const Sm90aAttention& a, const Sm90aView& view, const MapShape& shape) {
  CUtensorMap map{};
  const cuuint64_t dims[5] = {static_cast<cuuint64_t>(shape.elements), static_cast<cuuint64_t>(shape.tokens),
                              static_cast<cuuint64_t>(shape.group), static_cast<cuuint64_t>(shape.kv_heads),
                              static_cast<cuuint64_t>(shape.batch)};
  const cuuint64_t strides[4] = {static_cast<cuuint64_t>(view.token) * 2, static_cast<cuuint64_t>(view.head) * 2,
                                 static_cast<cuuint64_t>(view.kv_head) * 2,
                                 static_cast<cuuint64_t>(view.sample) * 2};
  const cuuint32_t box[5] = {kRowElements, static_cast<cuuint32_t>(shape.rows), 1, 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  EncodeOf()(&map, a.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5,
             view.data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}
CUtensorMap QueriesMap(const Sm90aAttention& a, const Sm90aView& view, int rows) {
  return MapOf(a, view, {a.head, a.queries, a.heads / a.kv_heads, a.kv_heads, a.batch, rows});
}
CUtensorMap KeysMap(const Sm90aAttention& a, Sm90aView view, int rows) {
  view.head = a.head;  // of a dim of one
  return MapOf(a, view, {a.head, a.keys, 1, a.kv_heads, a.batch, rows});
}

Common CommonOf(const Sm90aAttention& a, int tile) {
  Common c{.heads = a.heads,
           .kv_heads = a.kv_heads,
           .group = a.heads / a.kv_heads,
           .keys = a.keys,
           .runs = a.runs,
           .causal = a.causal,
           .window = a.window,
           .scale_log2 = a.scale * kLog2E,
           .softcap = a.softcap,
           .bent_scale = a.softcap > 0 ? a.scale / a.softcap : 0,
           .slopes = a.slopes,
           .drop_below_high = a.drop_below << 16,
           .keep_scale = a.keep_scale,
           .key_low = a.key_low,
           .key_high = a.key_high,
           .first_sample = a.first_sample,
           .first_head = a.first_head,
           .logical_heads = a.logical_heads,
           .control = a.control};
  for (int i = 0; i < a.runs; ++i) {
    c.run[i] = {a.run[i].row, a.run[i].count, a.run[i].position, c.tiles};
    c.tiles += (a.run[i].count + tile - 1) / tile;
  }
  return c;
}

// Heads whose keys and values stay in L2 together.
int SectionOf(const Sm90aAttention& a, int of_group) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;
  const std::int64_t each = static_cast<std::int64_t>(a.keys) * a.head * 4;
  const std::int64_t sections = std::max<std::int64_t>(1, kBytes / each);
  return static_cast<int>(std::min<std::int64_t>(sections, a.batch * a.kv_heads)) * of_group;
}

template <typename Form>
cudaError_t LaunchForward(const Sm90aAttention& a, cudaStream_t stream) {
  ForwardParams p{.common = CommonOf(a, Form::kQueries),
                  .lse = a.lse,
                  .lse_sample = a.lse_sample,
                  .lse_token = a.lse_token,
                  .lse_head = a.lse_head,
                  .sinks = a.sinks,
                  .o = a.o.data,
                  .o_sample = a.o.sample,
                  .o_token = a.o.token,
                  .o_kv_head = a.o.kv_head,
                  .o_head = a.o.head};
  p.items = a.batch * a.heads * p.common.tiles;
  p.section = SectionOf(a, p.common.group);
  const auto kernel = ForwardKernel<Form>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Form::kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<std::min(a.multiprocessors * Form::kBlocks, p.items), Form::kThreads, Form::kSharedBytes, stream>>>(
      QueriesMap(a, a.q, Form::kQueries), KeysMap(a, a.k, Form::kKeys), KeysMap(a, a.v, Form::kKeys),
      QueriesMap(a, a.o, 64), p);
  return cudaGetLastError();
}

struct Workspace {
  std::int64_t lse2 = 0, delta = 0, dq = 0, turns = 0, bytes = 0;
};
template <typename Form>
Workspace WorkspaceOf(const Sm90aAttention& a) {
  const std::int64_t tiles = static_cast<std::int64_t>(a.batch) * a.heads * CommonOf(a, Form::kQueries).tiles;
  Workspace w;
  w.delta = tiles * Form::kRowsBytes;
  w.dq = 2 * w.delta;
  w.turns = w.dq + tiles * Form::kDQBytes;
  w.bytes = w.turns + (tiles * 4 + 255) / 256 * 256;
  return w;
}

template <typename Form>
cudaError_t LaunchBackward(const Sm90aAttention& a, cudaStream_t stream) {
  const Workspace w = WorkspaceOf<Form>(a);
  auto* const workspace = static_cast<char*>(a.workspace);
  auto* const lse2 = reinterpret_cast<float*>(workspace + w.lse2);
  auto* const delta = reinterpret_cast<float*>(workspace + w.delta);
  auto* const sums = reinterpret_cast<float*>(workspace + w.dq);
  auto* const turns = reinterpret_cast<int*>(workspace + w.turns);
  const Common c = CommonOf(a, Form::kQueries);
  SumsParams before{.common = c,
                    .o = a.o.data,
                    .d_o = a.d_o.data,
                    .o_sample = a.o.sample,
                    .o_token = a.o.token,
                    .o_kv_head = a.o.kv_head,
                    .o_head = a.o.head,
                    .d_o_sample = a.d_o.sample,
                    .d_o_token = a.d_o.token,
                    .d_o_kv_head = a.d_o.kv_head,
                    .d_o_head = a.d_o.head,
                    .lse = a.lse,
                    .lse_sample = a.lse_sample,
                    .lse_token = a.lse_token,
                    .lse_head = a.lse_head,
                    .lse2 = lse2,
                    .delta = delta,
                    .turns = turns,
                    .rows = static_cast<std::int64_t>(a.batch) * c.tiles * Form::kQueries * c.heads};
  constexpr int kThreads = 256;
  constexpr int kRows = kThreads / (Form::kE / 8);
  RowSumsKernel<Form><<<static_cast<unsigned>((before.rows + kRows - 1) / kRows), kThreads, 0, stream>>>(before);

  BackwardParams p{.common = c,
                   .blocks = (a.keys + Form::kKeys - 1) / Form::kKeys,
                   .lse2 = lse2,
                   .delta = delta,
                   .dq = sums,
                   .turns = turns,
                   .scale = a.scale,
                   .dk = a.dk.data,
                   .dv = a.dv.data,
                   .dk_sample = a.dk.sample,
                   .dk_token = a.dk.token,
                   .dk_kv_head = a.dk.kv_head,
                   .dv_sample = a.dv.sample,
                   .dv_token = a.dv.token,
                   .dv_kv_head = a.dv.kv_head};
  const bool whole = a.causal && a.window == 0 && a.runs == 1 && a.queries == a.keys && a.run[0].position == 0;
  p.pairs = whole && (p.blocks + 1) / 2 <= a.multiprocessors / 2 && a.pairs;
  p.items = a.batch * a.kv_heads * (p.pairs ? (p.blocks + 1) / 2 : p.blocks);
  p.section = p.pairs ? 1 : std::min(a.section > 0 ? a.section : SectionOf(a, 1), a.batch * a.kv_heads);
  const auto kernel = BackwardKernel<Form>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Form::kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<std::min(a.multiprocessors, p.items), Form::kThreads, Form::kSharedBytes, stream>>>(
      QueriesMap(a, a.q, Form::kQueries), KeysMap(a, a.k, Form::kKeys), KeysMap(a, a.v, Form::kKeys),
      QueriesMap(a, a.d_o, Form::kQueries), p);

  const RoundParams after{.common = c,
                          .sums = sums,
                          .scale = a.scale,
                          .dq = a.dq.data,
                          .dq_sample = a.dq.sample,
                          .dq_token = a.dq.token,
                          .dq_kv_head = a.dq.kv_head,
                          .dq_head = a.dq.head};
  RoundSumsKernel<Form><<<static_cast<unsigned>(a.batch * a.heads * c.tiles), 2 * kWarpgroup, 0, stream>>>(after);
  return cudaGetLastError();
}

#ifndef FWD64_WORKERS
#define FWD64_WORKERS 2
#define FWD64_KEYS 128
#define FWD64_BLOCKS 1
#endif
template <typename T, int kE, bool... kOptions>
using Forward = ForwardForm<T, kE, kE == 64 ? FWD64_WORKERS : 2, kE == 64 ? FWD64_KEYS : 128, kE == 64 ? FWD64_BLOCKS : 1, kOptions...>;
template <typename T, int kE, bool... kOptions>
using Backward = BackwardForm<T, kE, 128 * 64 / kE, kOptions...>;

// Calls work.Run of the problem's form.
template <typename Result, bool... kOptions, typename Work>
Result ChooseHead(const Sm90aAttention& a, const Work& work) {
  using T = __nv_bfloat16;
  return a.head == 64 ? work.template Run<T, 64, kOptions...>() : work.template Run<T, 128, kOptions...>();
}
template <typename Result, bool... kOptions, typename Work, typename... Flags>
Result ChooseOption(const Sm90aAttention& a, const Work& work, bool flag, Flags... flags) {
  if constexpr (sizeof...(Flags) == 0) {
    return flag ? ChooseHead<Result, kOptions..., true>(a, work) : ChooseHead<Result, kOptions..., false>(a, work);
  } else {
    return flag ? ChooseOption<Result, kOptions..., true>(a, work, flags...)
                : ChooseOption<Result, kOptions..., false>(a, work, flags...);
  }
}
template <typename Result, typename Work>
Result Choose(const Sm90aAttention& a, const Work& work) {
#ifdef ONLY_PLAIN
  return a.drop_below > 0 ? ChooseHead<Result, false, false, true>(a, work) : ChooseHead<Result, false, false, false>(a, work);
#else
  return ChooseOption<Result>(a, work, a.softcap > 0, a.slopes != nullptr, a.drop_below > 0);
#endif
}
struct RunForward {
  const Sm90aAttention& a;
  cudaStream_t stream;
  template <typename T, int kE, bool... kOptions>
  cudaError_t Run() const {
    return LaunchForward<Forward<T, kE, kOptions...>>(a, stream);
  }
};
struct RunBackward {
  const Sm90aAttention& a;
  cudaStream_t stream;
  template <typename T, int kE, bool... kOptions>
  cudaError_t Run() const {
    return LaunchBackward<Backward<T, kE, kOptions...>>(a, stream);
  }
};
struct Measure {
  const Sm90aAttention& a;
  template <typename T, int kE, bool... kOptions>
  std::int64_t Run() const {
    return WorkspaceOf<Backward<T, kE, kOptions...>>(a).bytes;
  }
};

}  // namespace

std::int64_t Sm90aWorkspace(const Sm90aAttention& a) { return Choose<std::int64_t>(a, Measure{a}); }
cudaError_t Sm90aForward(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose<cudaError_t>(a, RunForward{a, stream});
}
cudaError_t Sm90aBackward(const Sm90aAttention& a, cudaStream_t stream) {
  return Choose<cudaError_t>(a, RunBackward{a, stream});
}

}  // namespace engine::backend::cuda

// How the kernels of attention on Hopper are launched: a form for each choice of options. Each source file that includes this
// compiles the forms of one head, element type and direction.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "engine/backend/cuda/attention/backward_sm90a.cuh"
#include "engine/backend/cuda/attention/forward_sm90a.cuh"
#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/backend/cuda/profile/attention_tiles.h"

namespace engine::backend::cuda::attention_sm90a {

// Makes tensor maps of a problem's tensors, from which boxes of so many tokens by 64 elements of a head are read.
class TensorMaps {
 public:
  explicit TensorMaps(const AttentionProblem& problem) : p_(problem) {}
  CUtensorMap Queries(const AttentionView& view, int rows);
  CUtensorMap Keys(const AttentionView& view, int rows);
  // Of the first map that the driver has refused.
  cudaError_t error() const { return error_; }

 private:
  CUtensorMap Make(const AttentionView& view, std::int64_t tokens, std::int64_t heads, int rows);

  const AttentionProblem& p_;
  cudaError_t error_ = cudaSuccess;
};

Common CommonOf(const Sm90aAttention& a, int tile);

// As many heads, of which `heads` have keys and values in common, as may have them in L2 together.
int SectionOf(const AttentionProblem& p, int heads);

// Calls run.Run<capped, slopes, dropout>.
template <bool... kOptions, typename Run, typename... Flags>
cudaError_t ChooseOptions(const Run& run, bool flag, Flags... flags) {
  if constexpr (sizeof...(Flags) == 0) {
    return flag ? run.template Launch<kOptions..., true>() : run.template Launch<kOptions..., false>();
  } else {
    return flag ? ChooseOptions<kOptions..., true>(run, flags...)
                : ChooseOptions<kOptions..., false>(run, flags...);
  }
}
template <typename Run>
cudaError_t Choose(const AttentionProblem& p, const Run& run) {
  return ChooseOptions(run, p.softcap > 0, p.alibi, p.dropout.below > 0);
}

// Before a launch; a GPU remembers it.
template <typename Kernel>
cudaError_t Allow(Kernel kernel, int shared_bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

template <typename T, int kE>
struct RunForward {
  const Sm90aAttention& a;
  cudaStream_t stream;

  template <bool kCapped, bool kSlopes, bool kDropout>
  cudaError_t Launch() const {
    // Of short heads three warpgroups fill the tensor cores better, in long sequences: with few blocks of keys a tile of 192
    // queries has more that is masked. Draws of three would not fit their registers.
    if constexpr (kE == 64 && !kDropout) {
      constexpr std::int64_t kLong = 4096;
      if (a.problem.keys >= kLong)
        return LaunchForm<ForwardForm<T, kE, 3, 128, kCapped, kSlopes, kDropout>>();
    }
    return LaunchForm<ForwardForm<T, kE, 2, 128, kCapped, kSlopes, kDropout>>();
  }

  template <typename Form>
  cudaError_t LaunchForm() const {
    const AttentionProblem& p = a.problem;
    ForwardParams params{.common = CommonOf(a, Form::kQueries), .lse = p.lse, .sinks = p.sinks, .o = p.o};
    params.items = static_cast<int>(p.batch * p.heads) * params.common.tiles;
    params.section = SectionOf(p, params.common.group);
    const auto kernel = ForwardKernel<Form>;
    if (const cudaError_t error = Allow(kernel, Form::kSharedBytes); error != cudaSuccess) return error;
    TensorMaps maps(p);
    const CUtensorMap q = maps.Queries(p.q, Form::kQueries);
    const CUtensorMap k = maps.Keys(p.k, Form::kKeys);
    const CUtensorMap v = maps.Keys(p.v, Form::kKeys);
    const CUtensorMap o = maps.Queries(p.o, 64);
    if (maps.error() != cudaSuccess) return maps.error();
    kernel<<<std::min(a.multiprocessors, params.items), Form::kThreads, Form::kSharedBytes, stream>>>(
        q, k, v, o, params);
    return cudaGetLastError();
  }
};

template <typename T, int kE>
struct RunBackward {
  const Sm90aAttention& a;
  cudaStream_t stream;
  static constexpr int kTile = OwnTileQueries(kE);

  template <bool kCapped, bool kSlopes, bool kDropout>
  cudaError_t Launch() const {
    using Form = BackwardForm<T, kE, kTile, kCapped, kSlopes, kDropout>;
    const AttentionProblem& p = a.problem;
    const Common c = CommonOf(a, kTile);
    BackwardParams params{.common = c,
                          .blocks = static_cast<int>((p.keys + Form::kKeys - 1) / Form::kKeys),
                          .lse2 = a.lse2,
                          .delta = a.row_sums,
                          .dq = a.dq_sums,
                          .turns = a.turns,
                          .scale = p.scale,
                          .dk = p.dk,
                          .dv = p.dv};
    // Pairs wait for each other both ways, so that all of a head have to be on the GPU at once: half of it is enough.
    const bool whole = a.causal && p.window == 0 && a.runs == 1 && p.queries == p.keys;
    const int pairs = (params.blocks + 1) / 2;
    params.pairs = whole && pairs <= a.multiprocessors / 2 ? 1 : 0;
    params.items = static_cast<int>(p.batch * p.kv_heads) * (params.pairs ? pairs : params.blocks);
    params.section = params.pairs ? 1 : SectionOf(p, 1);
    const auto kernel = BackwardKernel<Form>;
    if (const cudaError_t error = Allow(kernel, Form::kSharedBytes); error != cudaSuccess) return error;
    TensorMaps maps(p);
    const CUtensorMap q = maps.Queries(p.q, kTile);
    const CUtensorMap k = maps.Keys(p.k, Form::kKeys);
    const CUtensorMap v = maps.Keys(p.v, Form::kKeys);
    const CUtensorMap d_o = maps.Queries(p.d_o, kTile);
    if (maps.error() != cudaSuccess) return maps.error();
    SumRows(c);
    // A block an item, and not a grid that stays: the GPU starts blocks in their order where there is room, so that whatever
    // else holds multiprocessors, what an item waits for has been started before it.
    kernel<<<static_cast<unsigned>(params.items), Form::kThreads, Form::kSharedBytes, stream>>>(q, k, v, d_o,
                                                                                                params);
    FinishRows(c);
    return cudaGetLastError();
  }

  void SumRows(const Common& c) const {
    const AttentionProblem& p = a.problem;
    constexpr int kThreads = 256;
    constexpr int kRows = kThreads / (kE / 8);
    const RowSumsParams params{.common = c,
                               .o = p.o,
                               .d_o = p.d_o,
                               .lse = p.lse,
                               .lse2 = a.lse2,
                               .row_sums = a.row_sums,
                               .turns = a.turns,
                               .rows = p.batch * c.tiles * kTile * p.heads};
    const auto blocks = static_cast<unsigned>((params.rows + kRows - 1) / kRows);
    RowSumsKernel<T, kE, kTile><<<blocks, kThreads, 0, stream>>>(params);
  }

  void FinishRows(const Common& c) const {
    const AttentionProblem& p = a.problem;
    const RoundSumsParams params{.common = c, .sums = a.dq_sums, .scale = p.scale, .dq = p.dq};
    RoundSumsKernel<T, kE, kTile>
        <<<static_cast<unsigned>(p.batch * p.heads * c.tiles), 2 * kWarpgroup, 0, stream>>>(params);
    if (p.sinks == nullptr || p.d_sinks == nullptr) return;
    const SinkSumsParams sinks{.sinks = p.sinks,
                               .d_sinks = p.d_sinks,
                               .lse2 = a.lse2,
                               .row_sums = a.row_sums,
                               .rows = static_cast<std::int64_t>(c.tiles) * kTile,
                               .batch = static_cast<int>(p.batch),
                               .heads = c.heads};
    SinkSumsKernel<T><<<static_cast<unsigned>(c.heads), kWarpgroup, 0, stream>>>(sinks);
  }
};

// Of each head and element type, in a source file of its own.
cudaError_t Forward64(const Sm90aAttention& a, cudaStream_t stream, __nv_bfloat16);
cudaError_t Forward64(const Sm90aAttention& a, cudaStream_t stream, __half);
cudaError_t Forward128(const Sm90aAttention& a, cudaStream_t stream, __nv_bfloat16);
cudaError_t Forward128(const Sm90aAttention& a, cudaStream_t stream, __half);
cudaError_t Backward64(const Sm90aAttention& a, cudaStream_t stream, __nv_bfloat16);
cudaError_t Backward64(const Sm90aAttention& a, cudaStream_t stream, __half);
cudaError_t Backward128(const Sm90aAttention& a, cudaStream_t stream, __nv_bfloat16);
cudaError_t Backward128(const Sm90aAttention& a, cudaStream_t stream, __half);

}  // namespace engine::backend::cuda::attention_sm90a

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

// A box of a matrix, which TMA reads or writes at once: so many tokens by so many elements of a head, which are a swizzle's width.
struct HeadBox {
  int tokens, elements;
};
template <typename Matrix>
constexpr HeadBox BoxOf() {
  return {Matrix::kRows, Matrix::kPartColumns};
}

// Makes tensor maps of a problem's tensors.
class TensorMaps {
 public:
  // `slots`: Sm90aAttention::slots; 0: as many as samples.
  explicit TensorMaps(const AttentionProblem& problem, std::int64_t slots = 0)
      : p_(problem), key_samples_(slots > 0 ? slots : problem.batch) {}
  // Maps of a tensor of queries (q, o, dq, …) or of keys (k, v, …), whose heads have so many elements: AttentionProblem::head or
  // value_head.
  CUtensorMap Queries(const AttentionView& view, std::int64_t elements, const HeadBox& box);
  CUtensorMap Keys(const AttentionView& view, std::int64_t elements, const HeadBox& box);
  // A map of the biases of pairs, whose rows are queries' places and whose elements are keys'. Their number must be a multiple of
  // kPlacesOfMap.
  static constexpr std::int64_t kPlacesOfMap = 8;  // strides are multiples of 16 bytes
  CUtensorMap Pairs(const HeadBox& box);
  // Why the driver refused the first map that it did refuse; cudaSuccess: it has made all.
  cudaError_t error() const { return error_; }

 private:
  CUtensorMap Make(const AttentionView& view, std::int64_t elements, std::int64_t tokens, std::int64_t heads,
                   std::int64_t samples, const HeadBox& box);

  const AttentionProblem& p_;
  std::int64_t key_samples_;
  cudaError_t error_ = cudaSuccess;
};

// The map of biases of pairs, which a form reads by boxes where their rows allow it: params->boxes_biases. Of others it is empty.
template <typename Form, typename Params>
CUtensorMap BiasBoxes(const AttentionProblem& p, TensorMaps* maps, Params* params) {
  if constexpr (Form::kOfPairs) {
    params->boxes_biases = p.pairs % TensorMaps::kPlacesOfMap == 0;
    if (params->boxes_biases) return maps->Pairs(BoxOf<typename Form::PairBiases>());
  }
  return {};
}

Common CommonOf(const Sm90aAttention& a, int tile);

// As many heads, of which `heads` have keys and values in common, as may have them in L2 together.
int SectionOf(const AttentionProblem& p, int heads);
// About `fitting` of `all` heads, and a number that `all` is a multiple of if there is one near: with few heads a last section that is
// smaller would leave multiprocessors without work.
int EvenSection(std::int64_t fitting, std::int64_t all);
// How many blocks of keys of a head are at work at once in the backward pass. They walk along the same tiles one behind the other, so
// that what one has read is in L2 for the next ones, and the sums of dq that it adds to. The last ones wait for the first ones at the
// begin of a walk: of a short one, of `steps` tiles, fewer are at work. Walks of documents are not known here: they may be short.
constexpr int BlocksOfHead(bool is_wide, bool has_documents, int steps) {
  const int least = is_wide ? 8 : 4;
  return has_documents ? least : std::clamp(steps / (is_wide ? 4 : 2), least, 2 * least);
}

// Adds to the gradient of biases what each warp's keys have gathered of it (DistanceSums).
struct DistanceSumsParams {
  const float* sums;  // [B, H, parts, rows]
  float* d_biases;    // [H, biases], of each head the first `rows`
  int batch, heads, parts, rows, biases;
};
void AddDistanceSums(const DistanceSumsParams& params, cudaStream_t stream);

// Calls run.Launch<capped, biases, dropout>.
template <bool kCapped, Biases kBiases, typename Run>
cudaError_t ChooseDropout(const AttentionProblem& p, const Run& run) {
  return p.dropout.below > 0 ? run.template Launch<kCapped, kBiases, true>()
                             : run.template Launch<kCapped, kBiases, false>();
}
template <typename Run>
cudaError_t Choose(const AttentionProblem& p, const Run& run) {
  if (p.biases != nullptr) {
    return p.pairs > 0 ? ChooseDropout<false, Biases::kOfPairs>(p, run)
                       : ChooseDropout<false, Biases::kByDistance>(p, run);
  }
  if (p.softcap > 0) {
    return p.alibi ? ChooseDropout<true, Biases::kLinear>(p, run)
                   : ChooseDropout<true, Biases::kNone>(p, run);
  }
  return p.alibi ? ChooseDropout<false, Biases::kLinear>(p, run)
                 : ChooseDropout<false, Biases::kNone>(p, run);
}

// Before a launch; a GPU remembers it.
template <typename Kernel>
cudaError_t Allow(Kernel kernel, int shared_bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

// The forms of heads whose sizes are kOwnSizes[kSizes].
template <typename T, int kSizes>
struct RunForward {
  const Sm90aAttention& a;
  cudaStream_t stream;
  static constexpr int kE = kOwnSizes[kSizes].head;
  static constexpr int kU = kOwnSizes[kSizes].value_head;
  static constexpr int kKeys = kU > 128 ? 64 : 128;  // that fit

  template <bool kCapped, Biases kBiases, bool kDropout>
  cudaError_t Launch() const {
    // Biases of pairs leave shared memory for 64 keys of wide heads.
    constexpr int kBlock = kBiases == Biases::kOfPairs && kE > 128 ? 64 : kKeys;
    // Where heads are short three warpgroups fill the tensor cores better than two, but more of their tile of 192 queries is masked. So
    // long sequences have three; and where such a tile meets few blocks of keys, in a window or a shorter sequence, each warpgroup
    // passes by the blocks that it does not see. Draws, caps or biases of pairs of three would not fit their registers.
    if constexpr (kE == 64 && !kDropout && !kCapped && kBiases != Biases::kOfPairs) {
      constexpr std::int64_t kLeast = 2048;
      constexpr std::int64_t kLong = 4096;
      const AttentionProblem& p = a.problem;
      if (p.keys >= kLeast && (p.window > 0 || p.keys < kLong))
        return LaunchForm<ForwardForm<T, kE, kU, 3, kBlock, kCapped, kBiases, kDropout, /*kPasses=*/true>>();
      if (p.keys >= kLong) return LaunchForm<ForwardForm<T, kE, kU, 3, kBlock, kCapped, kBiases, kDropout>>();
    }
    // Caps keep the unit for tanh and exponentials busy where heads are short.
    if constexpr (kE == 64 && kCapped && kBiases == Biases::kNone && std::is_same_v<T, __nv_bfloat16>) {
      if (a.problem.softcap <= kMostBound) {
        return LaunchForm<ForwardForm<T, kE, kU, 2, kBlock, kCapped, kBiases, kDropout, /*kPasses=*/false,
                                      /*kIsBounded=*/true>>();
      }
    }
    return LaunchForm<ForwardForm<T, kE, kU, 2, kBlock, kCapped, kBiases, kDropout>>();
  }

  template <typename Form>
  cudaError_t LaunchForm() const {
    const AttentionProblem& p = a.problem;
    ForwardParams params{.common = CommonOf(a, Form::kQueries), .lse = p.lse, .sinks = p.sinks, .o = p.o};
    params.items = static_cast<int>(p.batch * p.heads) * params.common.tiles;
    params.section = SectionOf(p, params.common.group);
    const auto kernel = ForwardKernel<Form>;
    if (const cudaError_t error = Allow(kernel, Form::kSharedBytes); error != cudaSuccess) return error;
    TensorMaps maps(p, a.slots);
    const CUtensorMap q = maps.Queries(p.q, p.head, BoxOf<typename Form::Q>());
    const CUtensorMap k = maps.Keys(p.k, p.head, BoxOf<typename Form::K>());
    const CUtensorMap v = maps.Keys(p.v, p.value_head, BoxOf<typename Form::V>());
    const CUtensorMap o = maps.Queries(p.o, p.value_head, {64, Form::O::kPartColumns});  // a warpgroup's
    const CUtensorMap biases = BiasBoxes<Form>(p, &maps, &params);
    if (maps.error() != cudaSuccess) return maps.error();
    if (params.items > a.multiprocessors) {
      params.taken = a.taken;
      const cudaError_t error = cudaMemsetAsync(a.taken, 0, sizeof(*a.taken), stream);
      if (error != cudaSuccess) return error;
    }
    kernel<<<std::min(a.multiprocessors, params.items), Form::kThreads, Form::kSharedBytes, stream>>>(
        q, k, v, o, biases, params);
    return cudaGetLastError();
  }
};

template <typename T, int kSizes>
struct RunBackward {
  const Sm90aAttention& a;
  cudaStream_t stream;
  static constexpr OwnSizes kOwn = kOwnSizes[kSizes];
  static constexpr int kTile = kOwn.tile_queries;

  template <bool kCapped, Biases kBiases, bool kDropout>
  static auto FormOf() {
    if constexpr (kOwn.sums > 128) {
      return WideBackwardForm<T, kOwn.sums, kOwn.value_head, kCapped, kBiases, kDropout>();
    } else {
      return BackwardForm<T, kOwn.head, kTile, kCapped, kBiases, kDropout>();
    }
  }

  template <bool kCapped, Biases kBiases, bool kDropout>
  cudaError_t Launch() const {
    using Form = decltype(FormOf<kCapped, kBiases, kDropout>());
    static_assert(Form::kE == kOwn.sums && Form::kKeys == kOwn.block_keys && Form::kTurns == kOwn.turns);
    constexpr int kSharedBytes = BackwardMemory<Form>::kBytes;
    const AttentionProblem& p = a.problem;
    const Common c = CommonOf(a, kTile);
    BackwardParams params{.common = c,
                          .blocks = static_cast<int>((p.keys + Form::kKeys - 1) / Form::kKeys),
                          .lse2 = a.lse2,
                          .lse_plane = LsePlane(c),
                          .delta = a.row_sums,
                          .dq = a.dq_sums,
                          .turns = a.turns,
                          .scale = p.scale,
                          .distance_sums = a.distance_sums,
                          .d_biases = p.d_biases,
                          .sets_biases = a.sets_biases,
                          .dk = p.dk,
                          .dv = p.dv};
    if (p.spans != nullptr) {
      params.walks = reinterpret_cast<const int2*>(a.walks);
      params.first_blocks = a.first_blocks;
      params.common.key_spans = reinterpret_cast<const int2*>(a.key_spans);
    }
    // Where all items of a head wait for each other they have to be on the GPU at once: half of it is enough.
    const bool all_queries = p.spans == nullptr && p.window == 0;
    params.goes_round = !p.causal && all_queries && params.blocks <= a.multiprocessors / 2;
    params.items = static_cast<int>(p.batch * p.kv_heads) * params.blocks;
    const int steps = p.window > 0 ? std::min(c.tiles, static_cast<int>(p.window / kTile) + 1) : c.tiles;
    const int of_head = BlocksOfHead(Form::kWide, p.spans != nullptr, steps);
    params.section = params.goes_round ? 1 : EvenSection(a.multiprocessors / of_head, p.batch * p.kv_heads);
    if (!params.goes_round) params.taken = a.taken;
    const int blocks = params.goes_round ? params.items : std::min(params.items, a.multiprocessors);
    const auto kernel = BackwardKernel<Form>;
    if (const cudaError_t error = Allow(kernel, kSharedBytes); error != cudaSuccess) return error;
    TensorMaps maps(p);
    const CUtensorMap q = maps.Queries(p.q, p.head, BoxOf<typename Form::Q>());
    const CUtensorMap k = maps.Keys(p.k, p.head, BoxOf<typename Form::K>());
    const CUtensorMap v = maps.Keys(p.v, p.value_head, BoxOf<typename Form::V>());
    const CUtensorMap d_o = maps.Queries(p.d_o, p.value_head, BoxOf<typename Form::DO>());
    const CUtensorMap dk = maps.Keys(p.dk, p.head, BoxOf<typename Form::DK>());
    const CUtensorMap dv = maps.Keys(p.dv, p.value_head, BoxOf<typename Form::DV>());
    const CUtensorMap biases = BiasBoxes<Form>(p, &maps, &params);
    if (maps.error() != cudaSuccess) return maps.error();
    SumRows(c, params.blocks);
    engine::backend::cuda::Launch(/*early=*/true, kernel, static_cast<unsigned>(blocks), Form::kThreads,
                                  kSharedBytes, stream, q, k, v, d_o, biases, dk, dv, params);
    FinishRows(c);
    if (p.distance > 0) {
      AddDistanceSums({.sums = a.distance_sums,
                       .d_biases = p.d_biases,
                       .batch = static_cast<int>(p.batch),
                       .heads = c.heads,
                       .parts = params.blocks * kOwnKeyWarps,
                       .rows = DistancesOf(c).rows(),
                       .biases = 2 * c.distance + 1},
                      stream);
    }
    return cudaGetLastError();
  }

  std::int64_t LsePlane(const Common& c) const { return a.problem.batch * c.heads * c.tiles * kTile; }

  void SumRows(const Common& c, int blocks_of_keys) const {
    const AttentionProblem& p = a.problem;
    constexpr int kThreads = 256;
    constexpr int kRows = kThreads / LanesOfRow(kOwn.value_head) * kRowsOfThread;
    RowSumsParams params{.common = c,
                         .o = p.o,
                         .d_o = p.d_o,
                         .lse = p.lse,
                         .lse2 = a.lse2,
                         .row_sums = a.row_sums,
                         .lse_plane = LsePlane(c),
                         .turns = a.turns,
                         .taken = a.taken,
                         .thread_blocks = (kTile * c.heads + kRows - 1) / kRows};
    if (p.spans != nullptr) {
      const int threads = std::max(c.keys, c.tiles);
      params.tables = {.key_spans = reinterpret_cast<int2*>(a.key_spans),
                       .walks = reinterpret_cast<int2*>(a.walks),
                       .first_blocks = a.first_blocks,
                       .blocks = blocks_of_keys,
                       .samples = static_cast<int>(p.batch),
                       .threads = threads,
                       .thread_blocks = static_cast<int>((p.batch * threads + kThreads - 1) / kThreads)};
    }
    const auto blocks =
        static_cast<unsigned>(params.tables.thread_blocks + p.batch * c.tiles * params.thread_blocks);
    RowSumsKernel<T, kOwn.value_head, kTile, kOwn.block_keys, kOwn.turns>
        <<<blocks, kThreads, 0, stream>>>(params);
  }

  void FinishRows(const Common& c) const {
    const AttentionProblem& p = a.problem;
    const RoundSumsParams params{
        .common = c, .sums = a.dq_sums, .turns = a.turns, .scale = p.scale, .dq = p.dq};
    engine::backend::cuda::Launch(/*early=*/true, RoundSumsKernel<T, kOwn.sums, kTile, kOwn.turns>,
                                  static_cast<unsigned>(p.batch * p.heads * c.tiles),
                                  RoundThreads(kOwn.sums, kTile), 0, stream, params);
    if (p.sinks == nullptr || p.d_sinks == nullptr) return;
    const SinkSumsParams sinks{.sinks = p.sinks,
                               .d_sinks = p.d_sinks,
                               .lse2 = a.lse2,
                               .row_sums = a.row_sums,
                               .rows = static_cast<std::int64_t>(c.tiles) * kTile,
                               .batch = static_cast<int>(p.batch),
                               .heads = c.heads};
    engine::backend::cuda::Launch(/*early=*/true, SinkSumsKernel<T>, static_cast<unsigned>(c.heads),
                                  kWarpgroup, 0, stream, sinks);
  }
};

// Of kOwnSizes[kSizes]: specialised in a source file for each of these.
template <typename T, int kSizes>
cudaError_t Forward(const Sm90aAttention& a, cudaStream_t stream);
template <typename T, int kSizes>
cudaError_t Backward(const Sm90aAttention& a, cudaStream_t stream);

}  // namespace engine::backend::cuda::attention_sm90a

// A warp a query (forward and dq) or a key (dk and dv); the lanes share the elements of a head (of both its widths), so that a
// score is one sum over the warp. Nothing but the rows themselves is kept: softmax is online, and the
// gradient computes each probability again from lse.
#include "engine/backend/cuda/kernels/attention_reference.h"

#include <type_traits>

#include "engine/backend/cuda/kernels/score_biases.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/base/attention_draws.h"
#include "engine/graph/alibi.h"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// Elements lane, lane + 32, … of a row of E, zeros past its end.
template <typename T, int kEach>
__device__ __forceinline__ void LoadRow(const T* row, int head, float (&x)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + kWarp * i;
    x[i] = e < head ? ToFloat(row[e]) : 0.0F;
  }
}

template <typename T, int kEach>
__device__ __forceinline__ void StoreRow(T* row, int head, const float (&x)[kEach]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + kWarp * i;
    if (e < head) row[e] = FromFloat<T>(x[i]);
  }
}

template <int kEach>
__device__ __forceinline__ float Dot(const float (&x)[kEach], const float (&y)[kEach]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum = fmaf(x[i], y[i], sum);
  return WarpSum(sum);
}

template <int kEach>
__device__ __forceinline__ void AddScaled(float factor, const float (&x)[kEach], float (&sum)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum[i] = fmaf(factor, x[i], sum[i]);
}

template <typename T>
__device__ __forceinline__ T* QueryRow(const AttentionProblem& p, const AttentionView& view, std::int64_t b,
                                       std::int64_t s, std::int64_t h) {
  const std::int64_t group = p.heads / p.kv_heads;
  return static_cast<T*>(view.data) + b * view.sample + s * view.token + h / group * view.kv_head +
         h % group * view.head;
}

template <typename T>
__device__ __forceinline__ T* KeyRow(const AttentionView& view, std::int64_t b, std::int64_t t,
                                     std::int64_t kv) {
  return static_cast<T*>(view.data) + b * view.sample + t * view.token + kv * view.kv_head;
}

__device__ __forceinline__ float* LseAt(const LseView& view, std::int64_t b, std::int64_t s, std::int64_t h) {
  return view.data + b * view.sample + s * view.token + h * view.head;
}

__device__ __forceinline__ std::int64_t RowSumAt(const AttentionProblem& p, std::int64_t b, std::int64_t s,
                                                 std::int64_t h) {
  return (b * p.queries + s) * p.heads + h;
}

// What dropout multiplies the pair's probability by.
__device__ __forceinline__ float Keep(const AttentionProblem& p, std::int64_t b, std::int64_t h,
                                      std::int64_t position, std::int64_t key) {
  const AttentionDropout& dropout = p.dropout;
  if (dropout.below == 0) return 1.0F;
  const std::int64_t head = (dropout.first_sample + b) * p.logical_heads + p.first_head + h;
  const auto iteration = static_cast<std::uint64_t>(dropout.control[plan::kIteration]);
  const std::uint32_t draw =
      AttentionDraw({dropout.key_low, dropout.key_high}, iteration, static_cast<std::uint64_t>(head),
                    static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(key));
  return draw >= dropout.below ? dropout.scale : 0.0F;
}

// kBent: scores have a soft cap or a bias. The plain form, that of most reference runs, is an expression of its own, so
// that the compiler contracts it as it always did.

__device__ __forceinline__ float SlopeOf(const AttentionProblem& p, std::int64_t h) {
  if (!p.alibi) return 0.0F;
  return exp2f(static_cast<float>(graph::AlibiExponent(p.first_head + h, p.logical_heads)));
}

// A score is what softmax sees of a scaled product q·k; `derivative` is d(score)/d(scaled product).
struct Bent {
  float score, derivative;
};
// `biases` of a head and a query's position: its linear bias and its trained biases.
template <typename T>
struct QueryBiases {
  float slope;
  ScoreBiases<T> trained;
};
template <typename T>
__device__ __forceinline__ QueryBiases<T> BiasesOf(const AttentionProblem& p, std::int64_t h,
                                                   std::int64_t position) {
  return {SlopeOf(p, h), ScoreBiasesOf<T>(p, h, position)};
}
template <typename T>
__device__ __forceinline__ Bent Bend(const AttentionProblem& p, const QueryBiases<T>& biases,
                                     std::int64_t distance, float score) {
  float derivative = 1.0F;
  if (p.softcap > 0.0F) {
    const float share = tanhf(score / p.softcap);
    score = p.softcap * share;
    derivative = 1.0F - share * share;
  }
  if (biases.trained.any()) score += biases.trained.At(-distance);
  return {score - biases.slope * static_cast<float>(distance), derivative};
}

// The probability of a query and a key, and d(score)/d(scaled product).
struct PairScore {
  float probability, derivative;
};
template <bool kBent, typename T>
__device__ __forceinline__ PairScore ProbabilityOf(const AttentionProblem& p, const QueryBiases<T>& biases,
                                                   std::int64_t distance, float product, float lse) {
  if constexpr (!kBent) return {expf(p.scale * product - lse), 1.0F};
  const Bent bent = Bend(p, biases, distance, p.scale * product);
  return {expf(bent.score - lse), bent.derivative};
}

template <typename T>
__device__ __forceinline__ float SinkOf(const AttentionProblem& p, std::int64_t h) {
  return ToFloat(static_cast<const T*>(p.sinks)[h]);
}

struct Keys {
  std::int64_t first, last;
};

// By query s of sample b, which stands at `position`: those that the mask leaves it, of its document.
__device__ __forceinline__ Keys SeenBy(const AttentionProblem& p, std::int64_t b, std::int64_t s,
                                       std::int64_t position) {
  const std::int64_t first = p.window > 0 ? max(std::int64_t{0}, position - p.window + 1) : 0;
  const Keys seen = {first, p.causal ? min(p.keys, position + 1) : p.keys};
  if (p.spans == nullptr) return seen;
  const std::int32_t* span = p.spans + 2 * (b * p.queries + s);
  return {max(seen.first, std::int64_t{span[0]}), min(seen.last, std::int64_t{span[1]})};
}

__device__ __forceinline__ std::int64_t PositionOf(const AttentionProblem& p, std::int64_t b,
                                                   std::int64_t s) {
  return p.positions == nullptr ? s : p.positions[b * p.queries + s];
}

// The query of this warp: heads fastest, so that the warps of a block read the same keys. False: past the
// end.
struct Query {
  std::int64_t b, s, h;
};
__device__ __forceinline__ bool OwnQuery(const AttentionProblem& p, Query* query) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= p.batch * p.queries * p.heads) return false;
  *query = {index / (p.heads * p.queries), index / p.heads % p.queries, index % p.heads};
  return true;
}

template <typename T, int kEach, bool kBent>
__global__ void __launch_bounds__(kThreads) ForwardKernel(AttentionProblem p) {
  Query at;
  if (!OwnQuery(p, &at)) return;
  const int head = static_cast<int>(p.head);
  const int value_head = static_cast<int>(p.value_head);
  const std::int64_t kv = at.h / (p.heads / p.kv_heads);
  const std::int64_t position = PositionOf(p, at.b, at.s);
  const Keys seen = SeenBy(p, at.b, at.s, position);
  float q[kEach];
  float o[kEach] = {};
  LoadRow(QueryRow<const T>(p, p.q, at.b, at.s, at.h), head, q);
  float top = -INFINITY;
  float sum = 0;
  const QueryBiases<T> biases = kBent ? BiasesOf<T>(p, at.h, position) : QueryBiases<T>{};
  for (std::int64_t t = seen.first; t < seen.last; ++t) {
    float k[kEach];
    float v[kEach];
    LoadRow(KeyRow<const T>(p.k, at.b, t, kv), head, k);
    LoadRow(KeyRow<const T>(p.v, at.b, t, kv), value_head, v);
    float score = p.scale * Dot(q, k);
    if constexpr (kBent) score = Bend(p, biases, position - t, score).score;
    if (score > top) {  // the same in every lane
      const float shrink = expf(top - score);
      sum *= shrink;
#pragma unroll
      for (int i = 0; i < kEach; ++i) o[i] *= shrink;
      top = score;
    }
    const float probability = expf(score - top);
    sum += probability;
    AddScaled(probability * Keep(p, at.b, at.h, position, t), v, o);
  }
  if (p.sinks != nullptr) {  // one more key, without a value
    const float sink = SinkOf<T>(p, at.h);
    const float largest = fmaxf(top, sink);
    const float shrink = sum > 0 ? expf(top - largest) : 0.0F;
    sum = sum * shrink + expf(sink - largest);
    top = largest;
#pragma unroll
    for (int i = 0; i < kEach; ++i) o[i] *= shrink;
  }
  const float inverse = sum > 0 ? 1.0F / sum : 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i) o[i] *= inverse;
  StoreRow(QueryRow<T>(p, p.o, at.b, at.s, at.h), value_head, o);
  if (threadIdx.x % kWarp == 0) *LseAt(p.lse, at.b, at.s, at.h) = top + logf(sum);
}

// dq, and Σ_U d_o·o for the keys' kernel.
template <typename T, int kEach, bool kBent>
__global__ void __launch_bounds__(kThreads) QueryGradKernel(AttentionProblem p) {
  Query at;
  if (!OwnQuery(p, &at)) return;
  const int head = static_cast<int>(p.head);
  const int value_head = static_cast<int>(p.value_head);
  const std::int64_t kv = at.h / (p.heads / p.kv_heads);
  const std::int64_t position = PositionOf(p, at.b, at.s);
  const Keys seen = SeenBy(p, at.b, at.s, position);
  float q[kEach];
  float d_o[kEach];
  float dq[kEach] = {};
  LoadRow(QueryRow<const T>(p, p.o, at.b, at.s, at.h), value_head, q);
  LoadRow(QueryRow<const T>(p, p.d_o, at.b, at.s, at.h), value_head, d_o);
  const float row_sum = Dot(q, d_o);
  LoadRow(QueryRow<const T>(p, p.q, at.b, at.s, at.h), head, q);
  const float lse = *LseAt(p.lse, at.b, at.s, at.h);
  const QueryBiases<T> biases = kBent ? BiasesOf<T>(p, at.h, position) : QueryBiases<T>{};
  for (std::int64_t t = seen.first; t < seen.last; ++t) {
    float k[kEach];
    float v[kEach];
    LoadRow(KeyRow<const T>(p.k, at.b, t, kv), head, k);
    LoadRow(KeyRow<const T>(p.v, at.b, t, kv), value_head, v);
    const PairScore pair = ProbabilityOf<kBent>(p, biases, position - t, Dot(q, k), lse);
    const float d_probability = Dot(d_o, v) * Keep(p, at.b, at.h, position, t);
    float d_score = p.scale * pair.probability * (d_probability - row_sum);
    if constexpr (kBent) d_score *= pair.derivative;
    AddScaled(d_score, k, dq);
  }
  StoreRow(QueryRow<T>(p, p.dq, at.b, at.s, at.h), head, dq);
  if (threadIdx.x % kWarp == 0) p.row_sums[RowSumAt(p, at.b, at.s, at.h)] = row_sum;
}

// dk and dv of a key: the queries that see it, head by head of its group.
template <typename T, int kEach, bool kBent>
__global__ void __launch_bounds__(kThreads) KeyGradKernel(AttentionProblem p) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= p.batch * p.keys * p.kv_heads) return;
  const int head = static_cast<int>(p.head);
  const int value_head = static_cast<int>(p.value_head);
  const std::int64_t b = index / (p.kv_heads * p.keys);
  const std::int64_t t = index / p.kv_heads % p.keys;
  const std::int64_t kv = index % p.kv_heads;
  const std::int64_t group = p.heads / p.kv_heads;
  float k[kEach];
  float v[kEach];
  float dk[kEach] = {};
  float dv[kEach] = {};
  LoadRow(KeyRow<const T>(p.k, b, t, kv), head, k);
  LoadRow(KeyRow<const T>(p.v, b, t, kv), value_head, v);
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    for (std::int64_t s = 0; s < p.queries; ++s) {
      const std::int64_t position = PositionOf(p, b, s);
      const Keys seen = SeenBy(p, b, s, position);
      if (t < seen.first || t >= seen.last) continue;
      const QueryBiases<T> biases = kBent ? BiasesOf<T>(p, h, position) : QueryBiases<T>{};
      float q[kEach];
      float d_o[kEach];
      LoadRow(QueryRow<const T>(p, p.q, b, s, h), head, q);
      LoadRow(QueryRow<const T>(p, p.d_o, b, s, h), value_head, d_o);
      const PairScore pair = ProbabilityOf<kBent>(p, biases, position - t, Dot(q, k), *LseAt(p.lse, b, s, h));
      const float keep = Keep(p, b, h, position, t);
      float d_score = p.scale * pair.probability * (Dot(d_o, v) * keep - p.row_sums[RowSumAt(p, b, s, h)]);
      if constexpr (kBent) d_score *= pair.derivative;
      AddScaled(d_score, q, dk);
      AddScaled(pair.probability * keep, d_o, dv);
    }
  }
  StoreRow(KeyRow<T>(p.dk, b, t, kv), head, dk);
  StoreRow(KeyRow<T>(p.dv, b, t, kv), value_head, dv);
}

// A block a head: over its queries in a fixed order, after QueryGradKernel has left their sums.
template <typename T>
__global__ void __launch_bounds__(kThreads) SinkGradKernel(AttentionProblem p) {
  __shared__ float shared[kWarps];
  const std::int64_t h = blockIdx.x;
  const float sink = SinkOf<T>(p, h);
  float sum = 0;
  for (std::int64_t row = threadIdx.x; row < p.batch * p.queries; row += kThreads) {
    const std::int64_t b = row / p.queries;
    const std::int64_t s = row % p.queries;
    sum = fmaf(expf(sink - *LseAt(p.lse, b, s, h)), p.row_sums[RowSumAt(p, b, s, h)], sum);
  }
  sum = BlockSum<kThreads>(sum, shared);
  if (threadIdx.x == 0) p.d_sinks[h] -= sum;
}

// A block a row of a head's biases: over its queries in a fixed order, a warp a query at a time, after QueryGradKernel has
// left their sums. The first and the last row have most of the pairs, for which a block has as many warps as it may.
constexpr int kBiasThreads = 1024;
constexpr int kBiasWarps = kBiasThreads / kWarp;
template <typename T, int kEach>
__global__ void __launch_bounds__(kBiasThreads) BiasGradKernel(AttentionProblem p) {
  __shared__ float of_warps[kBiasWarps];
  const std::int64_t rows = 2 * p.distance + 1;
  const std::int64_t h = blockIdx.x / rows;
  const std::int64_t row = blockIdx.x % rows;
  const std::int64_t kv = h / (p.heads / p.kv_heads);
  float sum = 0;
  for (std::int64_t query = threadIdx.x / kWarp; query < p.batch * p.queries; query += kBiasWarps) {
    const std::int64_t b = query / p.queries;
    const std::int64_t s = query % p.queries;
    const std::int64_t position = PositionOf(p, b, s);
    Keys seen = SeenBy(p, b, s, position);
    if (row > 0) seen.first = max(seen.first, position + row - p.distance);
    if (row < rows - 1) seen.last = min(seen.last, position + row - p.distance + 1);
    if (seen.first >= seen.last) continue;
    const QueryBiases<T> biases = BiasesOf<T>(p, h, position);
    float q[kEach];
    float d_o[kEach];
    LoadRow(QueryRow<const T>(p, p.q, b, s, h), static_cast<int>(p.head), q);
    LoadRow(QueryRow<const T>(p, p.d_o, b, s, h), static_cast<int>(p.value_head), d_o);
    const float lse = *LseAt(p.lse, b, s, h);
    const float row_sum = p.row_sums[RowSumAt(p, b, s, h)];
    for (std::int64_t t = seen.first; t < seen.last; ++t) {
      float k[kEach];
      float v[kEach];
      LoadRow(KeyRow<const T>(p.k, b, t, kv), static_cast<int>(p.head), k);
      LoadRow(KeyRow<const T>(p.v, b, t, kv), static_cast<int>(p.value_head), v);
      const PairScore pair = ProbabilityOf<true>(p, biases, position - t, Dot(q, k), lse);
      sum += pair.probability * (Dot(d_o, v) * Keep(p, b, h, position, t) - row_sum);
    }
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  sum = WarpSum(of_warps[threadIdx.x]);
  if (threadIdx.x == 0) p.d_biases[blockIdx.x] += sum;
}

// A warp a query of a head, of all samples: for each of its keys their sum in order.
template <typename T, int kEach>
__global__ void __launch_bounds__(kThreads) PairGradKernel(AttentionProblem p) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= p.queries * p.heads) return;
  const std::int64_t s = index / p.heads;
  const std::int64_t h = index % p.heads;
  const std::int64_t kv = h / (p.heads / p.kv_heads);
  const std::int64_t position = PositionOf(p, 0, s);
  const QueryBiases<T> biases = BiasesOf<T>(p, h, position);
  float* const sums = p.d_biases + (h * p.pairs + position) * p.pairs;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Keys seen = SeenBy(p, b, s, position);
    float q[kEach];
    float d_o[kEach];
    LoadRow(QueryRow<const T>(p, p.q, b, s, h), static_cast<int>(p.head), q);
    LoadRow(QueryRow<const T>(p, p.d_o, b, s, h), static_cast<int>(p.value_head), d_o);
    const float lse = *LseAt(p.lse, b, s, h);
    const float row_sum = p.row_sums[RowSumAt(p, b, s, h)];
    for (std::int64_t t = seen.first; t < seen.last; ++t) {
      float k[kEach];
      float v[kEach];
      LoadRow(KeyRow<const T>(p.k, b, t, kv), static_cast<int>(p.head), k);
      LoadRow(KeyRow<const T>(p.v, b, t, kv), static_cast<int>(p.value_head), v);
      const PairScore pair = ProbabilityOf<true>(p, biases, position - t, Dot(q, k), lse);
      const float d = pair.probability * (Dot(d_o, v) * Keep(p, b, h, position, t) - row_sum);
      if (threadIdx.x % kWarp == 0) sums[t] += d;
    }
  }
}

unsigned BlocksFor(std::int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

// Calls of_form(T(), integral constant of elements a lane, integral constant kBent).
template <typename Body>
void WithRowType(const AttentionProblem& p, const Body& of_form) {
  WithElementType(p.dtype, [&](auto element) {
    const auto body = [&](auto row_element, auto each) {
      if (p.softcap > 0 || p.alibi || p.biases != nullptr) {
        of_form(row_element, each, std::true_type());
      } else {
        of_form(row_element, each, std::false_type());
      }
    };
    const std::int64_t widest = p.head > p.value_head ? p.head : p.value_head;
    if (widest <= kWarp) {
      body(element, std::integral_constant<int, 1>());
    } else if (widest <= 2 * kWarp) {
      body(element, std::integral_constant<int, 2>());
    } else if (widest <= 4 * kWarp) {
      body(element, std::integral_constant<int, 4>());
    } else if (widest <= 8 * kWarp) {
      body(element, std::integral_constant<int, 8>());
    } else {
      body(element, std::integral_constant<int, 16>());
    }
  });
}

}  // namespace

void AttentionReference(const AttentionProblem& problem, cudaStream_t stream) {
  const unsigned blocks = BlocksFor(problem.batch * problem.queries * problem.heads);
  if (blocks == 0) return;
  WithRowType(problem, [&](auto element, auto each, auto bent) {
    ForwardKernel<decltype(element), decltype(each)::value, decltype(bent)::value>
        <<<blocks, kThreads, 0, stream>>>(problem);
  });
}

void AttentionReferenceGrad(const AttentionProblem& problem, cudaStream_t stream) {
  const unsigned query_blocks = BlocksFor(problem.batch * problem.queries * problem.heads);
  const unsigned key_blocks = BlocksFor(problem.batch * problem.keys * problem.kv_heads);
  WithRowType(problem, [&](auto element, auto each, auto bent) {
    using T = decltype(element);
    constexpr int kEach = decltype(each)::value;
    constexpr bool kBent = decltype(bent)::value;
    if (query_blocks > 0) QueryGradKernel<T, kEach, kBent><<<query_blocks, kThreads, 0, stream>>>(problem);
    if (key_blocks > 0) KeyGradKernel<T, kEach, kBent><<<key_blocks, kThreads, 0, stream>>>(problem);
    if (problem.biases == nullptr || problem.heads == 0) return;
    if (problem.pairs > 0) {
      const unsigned blocks = BlocksFor(problem.queries * problem.heads);
      if (blocks > 0) PairGradKernel<T, kEach><<<blocks, kThreads, 0, stream>>>(problem);
      return;
    }
    const auto biases = static_cast<unsigned>(problem.heads * (2 * problem.distance + 1));
    BiasGradKernel<T, kEach><<<biases, kBiasThreads, 0, stream>>>(problem);
  });
  if (problem.sinks == nullptr || problem.heads == 0) return;
  WithElementType(problem.dtype, [&](auto element) {
    SinkGradKernel<decltype(element)><<<static_cast<unsigned>(problem.heads), kThreads, 0, stream>>>(problem);
  });
}

}  // namespace engine::backend::cuda

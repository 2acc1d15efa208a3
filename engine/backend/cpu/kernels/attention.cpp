// Both directions go over blocks of 64 queries and 256 keys, whose scores stay in cache, with one product per
// block on the calling thread; blocks without an unmasked pair are skipped. Forward is the online softmax of
// FlashAttention (arXiv:2205.14135).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/backend/cpu/kernels/attend_row.h"
#include "engine/backend/cpu/kernels/gemm.h"
#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/backend/cpu/kernels/loops.h"
#include "engine/base/attention_draws.h"
#include "engine/graph/alibi.h"
#include "engine/graph/attention_inputs.h"
#include "engine/graph/mask.h"

namespace engine::backend::cpu {
namespace {

constexpr std::int64_t kQueries = 64;
constexpr std::int64_t kKeys = 256;
// Keys [first, last).
struct Keys {
  std::int64_t first, last;
};

// Sizes and attributes, and who sees whom.
struct Problem {
  Problem(const KernelArgs& args, bool backward)
      : at(graph::InputsOfAttention(args.inputs, {.backward = backward})),
        q(args.inputs[0]),
        k(args.inputs[1]),
        positions(at.has_positions() ? args.inputs[at.positions].as<std::int32_t>() : nullptr),
        spans(at.has_spans() ? args.inputs[at.spans].as<std::int32_t>() : nullptr),
        batch(q.shape[0]),
        queries(q.shape[1]),
        heads(q.shape[2]),
        head(q.shape[3]),
        value_head(args.inputs[2].shape[3]),
        keys(k.shape[1]),
        kv_heads(k.shape[2]),
        group(heads / kv_heads),
        window(args.attributes->Int("window", 0)),
        causal(graph::IsCausal(*args.attributes)),
        scale(args.attributes->Float("scale")),
        dropout(args.attributes->Has("dropout") ? args.attributes->Float("dropout") : 0.0),
        softcap(args.attributes->Has("softcap") ? args.attributes->Float("softcap") : 0.0),
        distance(args.attributes->Int("distance", 0)),
        pairs(args.attributes->Int("pairs", 0)),
        alibi(args.attributes->Int("alibi", 0) != 0) {
    if (dropout == 0.0) return;
    context = args.context;
    key = MakePhiloxKey(context->seed, args.attributes->String("stream"));
  }

  // The first row of a head of `width` elements in a tensor of queries (or of keys).
  std::int64_t QueryRow(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t width) const {
    return ((b * queries + i) * heads + h) * width;
  }
  std::int64_t KeyRow(std::int64_t b, std::int64_t kv, std::int64_t j, std::int64_t width) const {
    return ((b * keys + j) * kv_heads + kv) * width;
  }
  std::int64_t value_stride() const { return heads * value_head; }  // between the rows of o

  Keys SeenBy(std::int64_t b, std::int64_t i) const {
    Keys seen = {0, keys};
    if (causal) {
      const std::int64_t position = positions[b * queries + i];
      if (window > 0) seen.first = std::max<std::int64_t>(0, position - window + 1);
      seen.last = std::min(keys, position + 1);
    }
    if (spans == nullptr) return seen;
    const std::int32_t* span = spans + 2 * (b * queries + i);
    return {std::max<std::int64_t>(seen.first, span[0]), std::min<std::int64_t>(seen.last, span[1])};
  }
  Keys SeenByAny(std::int64_t b, std::int64_t first, std::int64_t last) const {
    Keys all = {keys, 0};
    for (std::int64_t i = first; i < last; ++i) {
      const Keys seen = SeenBy(b, i);
      if (seen.first >= seen.last) continue;
      all = {std::min(all.first, seen.first), std::max(all.last, seen.last)};
    }
    return all;
  }

  // In the whole tensor.
  std::int64_t LogicalHead(std::int64_t h) const { return LogicalIndex(q.extent.dims[2], h); }

  // Drops out row[0, count): query i of head h against the keys from `first`.
  template <typename T>
  void DropOut(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t first, std::int64_t count,
               T* row) const {
    const std::int64_t sample = context->first_sample + LogicalIndex(q.extent.dims[0], b);
    const auto head = static_cast<std::uint64_t>(sample * q.logical[2] + LogicalHead(h));
    const auto query = static_cast<std::uint64_t>(positions[b * queries + i]);
    const Dropping dropping = Dropping::Of(dropout);
    const T scale = static_cast<T>(dropping.scale);
    for (std::int64_t sixteen = first / 16; 16 * sixteen < first + count; ++sixteen) {
      const auto draws =
          AttentionDraws16(key, context->iteration, head, query, static_cast<std::uint64_t>(sixteen));
      const std::int64_t last = std::min(first + count, 16 * sixteen + 16);
      for (std::int64_t j = std::max(first, 16 * sixteen); j < last; ++j) {
        const bool kept = draws[static_cast<std::size_t>(j % 16)] >= dropping.below;
        row[j - first] = kept ? row[j - first] * scale : T(0);
      }
    }
  }

  graph::AttentionInputs at;
  const TensorView& q;
  const TensorView& k;
  const std::int32_t* positions;  // null: no mask, dropout or bias asks for them
  const std::int32_t* spans;      // of each query two numbers; null: there are none
  // head: elements of q and k; value_head: of v and o.
  std::int64_t batch, queries, heads, head, value_head, keys, kv_heads, group, window;
  bool causal;
  double scale, dropout, softcap;
  std::int64_t distance;  // the largest that biases tell apart; 0: there are none
  std::int64_t pairs;     // places whose pairs have a bias each; likewise
  bool alibi;
  PhiloxKey key;
  const KernelContext* context = nullptr;
};

template <typename T>
struct alignas(64) Tile {
  T at[kQueries * kKeys];
};

// A block of queries [i0, i0 + rows) of head h against keys [j0, j0 + columns): scores are rows of `columns`.
struct Block {
  std::int64_t b, h, i0, rows, j0, columns;

  // The part of the block's columns that row r sees.
  Keys Seen(const Problem& p, std::int64_t r) const {
    const Keys seen = p.SeenBy(b, i0 + r);
    const std::int64_t first = std::clamp<std::int64_t>(seen.first - j0, 0, columns);
    return {first, std::clamp<std::int64_t>(seen.last - j0, first, columns)};
  }
};

// scores = scale · queries · keysᵀ of the block, for any pair of tensors laid out as q and as k, with heads of `width`.
template <typename T>
void QueryKeyProduct(const Problem& p, const Block& block, const T* queries, const T* keys,
                     std::int64_t width, double scale, T* scores) {
  Run(Gemm<T>{.m = block.rows,
              .n = block.columns,
              .k = width,
              .a = queries + p.QueryRow(block.b, block.h, block.i0, width),
              .lda = p.heads * width,
              .b = keys + p.KeyRow(block.b, block.h / p.group, block.j0, width),
              .ldb = p.kv_heads * width,
              .transpose_b = true,
              .c = scores,
              .ldc = block.columns,
              .alpha = static_cast<T>(scale)});
}

// out (laid out as q) = beta · out + scores · keys of the block.
template <typename T>
void ScoreKeyProduct(const Problem& p, const Block& block, const T* scores, const T* keys, std::int64_t width,
                     T beta, T* out) {
  Run(Gemm<T>{.m = block.rows,
              .n = width,
              .k = block.columns,
              .a = scores,
              .lda = block.columns,
              .b = keys + p.KeyRow(block.b, block.h / p.group, block.j0, width),
              .ldb = p.kv_heads * width,
              .c = out + p.QueryRow(block.b, block.h, block.i0, width),
              .ldc = p.heads * width,
              .beta = beta});
}

// out (laid out as k) += scoresᵀ · queries of the block.
template <typename T>
void ScoreQueryProduct(const Problem& p, const Block& block, const T* scores, const T* queries,
                       std::int64_t width, T* out) {
  Run(Gemm<T>{.m = block.columns,
              .n = width,
              .k = block.rows,
              .a = scores,
              .lda = block.columns,
              .transpose_a = true,
              .b = queries + p.QueryRow(block.b, block.h, block.i0, width),
              .ldb = p.heads * width,
              .c = out + p.KeyRow(block.b, block.h / p.group, block.j0, width),
              .ldc = p.kv_heads * width,
              .beta = T(1)});
}

template <typename T>
void ClearOutside(T* row, std::int64_t columns, Keys seen) {
  std::fill(row, row + seen.first, T(0));
  std::fill(row + seen.last, row + columns, T(0));
}

template <typename T>
void DropRow(const Problem& p, const Block& block, std::int64_t r, Keys seen, T* row) {
  p.DropOut(block.b, block.h, block.i0 + r, block.j0 + seen.first, seen.last - seen.first, row + seen.first);
}

// visit(column, element of the head's biases) for each column that row r sees.
template <typename Visit>
void ForEachBias(const Problem& p, const Block& block, std::int64_t r, Keys seen, const Visit& visit) {
  const std::int64_t position = p.positions[block.b * p.queries + block.i0 + r];
  for (std::int64_t j = seen.first; p.pairs > 0 && j < seen.last; ++j)
    visit(j, position * p.pairs + block.j0 + j);
  if (p.pairs > 0) return;
  const std::int64_t first = block.j0 - position;
  for (std::int64_t j = seen.first; j < seen.last; ++j)
    visit(j, std::clamp(first + j, -p.distance, p.distance) + p.distance);
}

// From scaled products to what softmax sees, of the columns that row r sees: soft cap, biases of distances or pairs (of this head;
// null: none) and linear bias. Where there is a cap, slope[j] becomes the capped score's derivative by the product.
template <typename T>
void BendRow(const Problem& p, const Block& block, std::int64_t r, Keys seen, const T* biases, T* row,
             T* slope) {
  if (p.softcap > 0) {
    const T cap = static_cast<T>(p.softcap);
    for (std::int64_t j = seen.first; j < seen.last; ++j) {
      const T share = std::tanh(row[j] / cap);
      row[j] = cap * share;
      slope[j] = T(1) - share * share;
    }
  }
  if (biases != nullptr) {
    ForEachBias(p, block, r, seen, [&](std::int64_t j, std::int64_t at) { row[j] += biases[at]; });
  }
  if (!p.alibi) return;
  const T bias = static_cast<T>(graph::AlibiSlope(p.LogicalHead(block.h), p.q.logical[2]));
  const std::int64_t distance = p.positions[block.b * p.queries + block.i0 + r] - block.j0;
  for (std::int64_t j = seen.first; j < seen.last; ++j) row[j] -= bias * static_cast<T>(distance - j);
}

// Sinks or biases that are here, which may be those of more heads than are here: `width` numbers a head; or none.
template <typename T>
struct OfHeads {
  OfHeads(const KernelArgs& args, std::size_t input)
      : values(input == graph::AttentionInputs::kNone ? nullptr : args.inputs[input].as<T>()) {
    if (values == nullptr) return;
    first = OnePiece(args.inputs[input], 0).start;
    width = args.inputs[input].shape.elements() / args.inputs[input].shape[0];
  }

  bool any() const { return values != nullptr; }
  // The index of a head's first number.
  std::int64_t IndexOf(const Problem& p, std::int64_t h) const { return (p.LogicalHead(h) - first) * width; }
  const T* Of(const Problem& p, std::int64_t h) const { return any() ? values + IndexOf(p, h) : nullptr; }

  const T* values;
  std::int64_t first = 0;
  std::int64_t width = 1;
};

// Running softmax of a block of queries: the largest score so far and Σ exp(score − largest).
template <typename T>
struct Running {
  T top[kQueries];
  T sum[kQueries];
};

// Turns the scores of one row into exp(score − top), rescaling what the row has gathered so far.
template <typename T>
void SoftmaxRow(const Problem& p, const Block& block, std::int64_t r, const T* biases, Running<T>* running,
                T* row, T* out) {
  const Keys seen = block.Seen(p, r);
  ClearOutside(row, block.columns, seen);
  if (seen.first == seen.last) return;
  T slope[kKeys];  // not needed
  BendRow(p, block, r, seen, biases, row, slope);
  const std::int64_t count = seen.last - seen.first;
  T* scores = row + seen.first;
  const T top = std::max(running->top[r], MaxOf(count, scores));
  for (std::int64_t j = 0; j < count; ++j) scores[j] = Exp(scores[j] - top);
  const T sum = SumOf<T>(count, [&](std::int64_t j) { return scores[j]; });
  if (running->sum[r] > T(0)) {
    const T shrink = Exp(running->top[r] - top);
    running->sum[r] *= shrink;
    for (std::int64_t e = 0; e < p.value_head; ++e) out[e] *= shrink;
  }
  running->top[r] = top;
  running->sum[r] += sum;
  if (p.dropout > 0) DropRow(p, block, r, seen, row);
}

// One more key, without a value: what the row has gathered so far is relative to the new largest score.
template <typename T>
void AddSink(const Problem& p, std::int64_t r, T sink, Running<T>* running, T* out) {
  const T top = std::max(running->top[r], sink);
  const T shrink = running->sum[r] > T(0) ? Exp(running->top[r] - top) : T(0);
  running->sum[r] = running->sum[r] * shrink + Exp(sink - top);
  running->top[r] = top;
  for (std::int64_t e = 0; e < p.value_head; ++e) out[e] *= shrink;
}

// The same queries, each by itself, so that its bits do not depend on the others.
template <typename T>
void ForwardRows(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t h, std::int64_t i0) {
  const RowsOfKeys rows(args, p.keys);
  const OfHeads<T> sinks(args, p.at.sinks);
  const T* const biases = OfHeads<T>(args, p.at.biases).Of(p, h);
  std::vector<T> scores;
  for (std::int64_t i = i0; i < std::min(i0 + kQueries, p.queries); ++i) {
    const Keys seen = p.SeenBy(b, i);
    args.outputs[1].as<T>()[(b * p.queries + i) * p.heads + h] = AttendRow<T>(
        rows,
        {.q = p.q.as<T>() + p.QueryRow(b, h, i, p.head),
         .k = p.k.as<T>() + p.KeyRow(b, h / p.group, 0, p.head),
         .v = args.inputs[2].as<T>() + p.KeyRow(b, h / p.group, 0, p.value_head),
         .biases = biases,
         .sink = sinks.Of(p, h),
         .o = args.outputs[0].as<T>() + p.QueryRow(b, h, i, p.value_head),
         .slope = p.alibi ? graph::AlibiSlope(p.LogicalHead(h), p.q.logical[2]) : 0},
        {seen.first, seen.last, p.positions == nullptr ? 0 : p.positions[b * p.queries + i]}, &scores);
  }
}

template <typename T>
void ForwardBlock(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t h, std::int64_t i0) {
  const std::int64_t rows = std::min(kQueries, p.queries - i0);
  T* o = args.outputs[0].as<T>() + p.QueryRow(b, h, i0, p.value_head);
  T* lse = args.outputs[1].as<T>();
  const OfHeads<T> sinks(args, p.at.sinks);
  const T* biases = OfHeads<T>(args, p.at.biases).Of(p, h);
  Tile<T> scores;
  Running<T> running;
  std::fill_n(running.top, rows, -std::numeric_limits<T>::infinity());
  std::fill_n(running.sum, rows, T(0));
  for (std::int64_t r = 0; r < rows; ++r) std::fill_n(o + r * p.value_stride(), p.value_head, T(0));
  const Keys any = p.SeenByAny(b, i0, i0 + rows);
  for (std::int64_t j0 = any.first; j0 < any.last; j0 += kKeys) {
    const Block block = {b, h, i0, rows, j0, std::min(kKeys, any.last - j0)};
    QueryKeyProduct(p, block, p.q.as<T>(), p.k.as<T>(), p.head, p.scale, scores.at);
    for (std::int64_t r = 0; r < rows; ++r) {
      SoftmaxRow(p, block, r, biases, &running, scores.at + r * block.columns, o + r * p.value_stride());
    }
    ScoreKeyProduct(p, block, scores.at, args.inputs[2].as<T>(), p.value_head, T(1), args.outputs[0].as<T>());
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    if (sinks.any()) AddSink(p, r, *sinks.Of(p, h), &running, o + r * p.value_stride());
    const T sum = running.sum[r];
    const T inverse = sum > T(0) ? T(1) / sum : T(0);
    for (std::int64_t e = 0; e < p.value_head; ++e) o[r * p.value_stride() + e] *= inverse;
    lse[(b * p.queries + i0 + r) * p.heads + h] = running.top[r] + std::log(sum);
  }
}

// Where the gradients of a head's biases are added up: of distances in float64, as most pairs share one; of pairs, one number a sample, where they
// are wanted.
template <typename T>
struct BiasSums {
  double* of_distances = nullptr;
  T* of_pairs = nullptr;

  void Add(std::int64_t at, T value) const {
    if (of_pairs != nullptr) {
      of_pairs[at] += value;
    } else {
      of_distances[at] += static_cast<double>(value);
    }
  }
};

// From the scores of row r and d_o·v: probabilities as they met v (dropped out), and dS, which is also added to the
// head's d_biases where there are biases.
template <typename T>
void BackwardRow(const Problem& p, const Block& block, std::int64_t r, T lse, T delta, const T* biases,
                 const BiasSums<T>& d_biases, T* probability, T* d_score) {
  const Keys seen = block.Seen(p, r);
  ClearOutside(probability, block.columns, seen);
  ClearOutside(d_score, block.columns, seen);
  T slope[kKeys];
  BendRow(p, block, r, seen, biases, probability, slope);
  for (std::int64_t j = seen.first; j < seen.last; ++j) probability[j] = Exp(probability[j] - lse);
  const T scale = static_cast<T>(p.scale);
  if (p.dropout > 0) DropRow(p, block, r, seen, d_score);
  if (biases != nullptr) {
    ForEachBias(p, block, r, seen, [&](std::int64_t j, std::int64_t at) {
      d_biases.Add(at, probability[j] * (d_score[j] - delta));
    });
  }
  for (std::int64_t j = seen.first; j < seen.last; ++j)
    d_score[j] = scale * probability[j] * (d_score[j] - delta);
  for (std::int64_t j = seen.first; p.softcap > 0 && j < seen.last; ++j) d_score[j] *= slope[j];
  if (p.dropout > 0) DropRow(p, block, r, seen, probability);
}

// Σ_U d_o·o of a query.
template <typename T>
T DeltaOf(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t h, std::int64_t i) {
  const T* o = args.inputs[p.at.o].as<T>() + p.QueryRow(b, h, i, p.value_head);
  const T* d_o = args.inputs[p.at.d_o].as<T>() + p.QueryRow(b, h, i, p.value_head);
  return SumOf<T>(p.value_head, [&](std::int64_t e) { return d_o[e] * o[e]; });
}

// d_sinks of the heads that are here; zero of others.
template <typename T>
void SinkGrad(const Problem& p, const KernelArgs& args) {
  const OfHeads<T> sinks(args, p.at.sinks);
  const T* lse = args.inputs[p.at.lse].as<T>();
  T* d_sinks = args.outputs[3].as<T>();
  if (!Accumulates(args, 3)) std::fill_n(d_sinks, args.outputs[3].shape[0], T(0));
  ForEachBlock(args, p.heads, 1, [&](std::int64_t h, std::int64_t) {
    const T sink = *sinks.Of(p, h);
    const T sum = SumOf<T>(p.batch * p.queries, [&](std::int64_t row) {
      return Exp(sink - lse[row * p.heads + h]) * DeltaOf<T>(p, args, row / p.queries, h, row % p.queries);
    });
    d_sinks[sinks.IndexOf(p, h)] -= sum;
  });
}

// The output of d_biases.
int BiasOutput(const Problem& p) { return p.at.has_sinks() ? 4 : 3; }

// In scratch: d_biases of distances of each sample and head, which BackwardRow adds to.
double* PartialBiases(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t h) {
  return reinterpret_cast<double*>(args.scratch.data()) + (b * p.heads + h) * (2 * p.distance + 1);
}

template <typename T>
BiasSums<T> BiasSumsOf(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t h) {
  if (!p.at.has_biases()) return {};
  if (p.pairs == 0) return {.of_distances = PartialBiases(p, args, b, h)};
  const std::int64_t first = OfHeads<T>(args, p.at.biases).IndexOf(p, h);
  return {.of_pairs = args.outputs[static_cast<std::size_t>(BiasOutput(p))].as<T>() + first};
}

// d_biases of other heads than those here are zero.
template <typename T>
void BeginBiasGrad(const Problem& p, const KernelArgs& args) {
  const int output = BiasOutput(p);
  const TensorView& d_biases = args.outputs[static_cast<std::size_t>(output)];
  if (!Accumulates(args, output)) std::fill_n(d_biases.as<T>(), d_biases.shape.elements(), T(0));
}

// d_biases of distances of the heads that are here, the samples' one after the other.
template <typename T>
void DistanceGrad(const Problem& p, const KernelArgs& args) {
  const OfHeads<T> biases(args, p.at.biases);
  T* d_biases = args.outputs[static_cast<std::size_t>(BiasOutput(p))].as<T>();
  for (std::int64_t h = 0; h < p.heads; ++h) {
    T* of_head = d_biases + biases.IndexOf(p, h);
    for (std::int64_t i = 0; i < biases.width; ++i) {
      double sum = 0;
      for (std::int64_t b = 0; b < p.batch; ++b) sum += PartialBiases(p, args, b, h)[i];
      of_head[i] += static_cast<T>(sum);
    }
  }
}

template <typename T>
void BackwardBlock(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t h,
                   std::int64_t i0) {
  const T* lse = args.inputs[p.at.lse].as<T>();
  const T* d_o = args.inputs[p.at.d_o].as<T>();
  T* dq = args.outputs[0].as<T>();
  const std::int64_t rows = std::min(kQueries, p.queries - i0);
  const T* biases = OfHeads<T>(args, p.at.biases).Of(p, h);
  const BiasSums<T> d_biases = BiasSumsOf<T>(p, args, b, h);
  T delta[kQueries];  // Σ_U d_o·o
  for (std::int64_t r = 0; r < rows; ++r) {
    delta[r] = DeltaOf<T>(p, args, b, h, i0 + r);
    std::fill_n(dq + p.QueryRow(b, h, i0 + r, p.head), p.head, T(0));
  }
  Tile<T> probability;
  Tile<T> d_score;
  const Keys any = p.SeenByAny(b, i0, i0 + rows);
  for (std::int64_t j0 = any.first; j0 < any.last; j0 += kKeys) {
    const Block block = {b, h, i0, rows, j0, std::min(kKeys, any.last - j0)};
    QueryKeyProduct(p, block, p.q.as<T>(), p.k.as<T>(), p.head, p.scale, probability.at);
    QueryKeyProduct(p, block, d_o, args.inputs[2].as<T>(), p.value_head, 1.0, d_score.at);
    for (std::int64_t r = 0; r < rows; ++r) {
      BackwardRow(p, block, r, lse[(b * p.queries + i0 + r) * p.heads + h], delta[r], biases, d_biases,
                  probability.at + r * block.columns, d_score.at + r * block.columns);
    }
    ScoreKeyProduct(p, block, d_score.at, p.k.as<T>(), p.head, T(1), dq);
    ScoreQueryProduct(p, block, d_score.at, p.q.as<T>(), p.head, args.outputs[1].as<T>());
    ScoreQueryProduct(p, block, probability.at, d_o, p.value_head, args.outputs[2].as<T>());
  }
}

}  // namespace

std::int64_t AttentionGradScratch(Types inputs, Types, const graph::Attributes& attributes) {
  if (attributes.Int("distance", 0) == 0) return 0;
  const Shape& q = inputs[0].shape;
  return q[0] * q[2] * (2 * attributes.Int("distance") + 1) * static_cast<std::int64_t>(sizeof(double));
}

template <typename T>
void Attention(const KernelArgs& args) {
  const Problem p(args, /*backward=*/false);
  // With dropout there is no other pass whose bits these could be.
  const bool row_by_row = args.attributes->Int("invariant", 0) != 0 && p.dropout == 0;
  const std::int64_t blocks = (p.queries + kQueries - 1) / kQueries;
  ForEachBlock(args, p.batch * p.heads * blocks, 1, [&](std::int64_t task, std::int64_t) {
    const std::int64_t sample = task / (p.heads * blocks);
    const std::int64_t head = task / blocks % p.heads;
    const std::int64_t first = task % blocks * kQueries;
    if (row_by_row) {
      ForwardRows<T>(p, args, sample, head, first);
    } else {
      ForwardBlock<T>(p, args, sample, head, first);
    }
  });
}

// The keys of one sample and kv head: adds the heads and query blocks that read them in order.
template <typename T>
void BackwardKeys(const Problem& p, const KernelArgs& args, std::int64_t b, std::int64_t kv) {
  for (std::int64_t j = 0; j < p.keys; ++j) {
    std::fill_n(args.outputs[1].as<T>() + p.KeyRow(b, kv, j, p.head), p.head, T(0));
    std::fill_n(args.outputs[2].as<T>() + p.KeyRow(b, kv, j, p.value_head), p.value_head, T(0));
  }
  for (std::int64_t h = kv * p.group; h < (kv + 1) * p.group; ++h) {
    if (p.distance > 0) std::fill_n(PartialBiases(p, args, b, h), 2 * p.distance + 1, 0.0);
    for (std::int64_t i0 = 0; i0 < p.queries; i0 += kQueries) BackwardBlock<T>(p, args, b, h, i0);
  }
}

// A task owns the keys of one sample and kv head; with biases of pairs, which samples share, those of all samples, one after the other.
template <typename T>
void AttentionGrad(const KernelArgs& args) {
  const Problem p(args, /*backward=*/true);
  if (p.at.has_biases()) BeginBiasGrad<T>(p, args);
  const std::int64_t in_turn = p.pairs > 0 ? p.batch : 1;  // samples of a task
  ForEachBlock(args, p.batch / in_turn * p.kv_heads, 1, [&](std::int64_t task, std::int64_t) {
    const std::int64_t first = task / p.kv_heads * in_turn;
    for (std::int64_t b = first; b < first + in_turn; ++b) BackwardKeys<T>(p, args, b, task % p.kv_heads);
  });
  if (p.at.has_sinks()) SinkGrad<T>(p, args);
  if (p.distance > 0) DistanceGrad<T>(p, args);
}

template void Attention<float>(const KernelArgs&);
template void Attention<double>(const KernelArgs&);
template void AttentionGrad<float>(const KernelArgs&);
template void AttentionGrad<double>(const KernelArgs&);

}  // namespace engine::backend::cpu

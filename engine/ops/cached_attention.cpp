// Attention over a cache of keys and values, as generation has it (Shazeer, arXiv:1911.02150: each token's keys and values
// are made once and kept)
//
//   cache_update(x[B, S, K, E], cache[N, T, K, E], positions[B, S] int32, slots[B] int32) → cache
//     Token s of sample b, at position p = positions_bs of its sequence, goes to row p mod T of slot slots_b. A cache of
//     fewer rows than the sequence has tokens forgets the oldest: of tokens of one row the last one stays. A token at the
//     position of the one before it is padding, and nothing is written for it; likewise a sample whose slot is −1, which is
//     there to fill the batch. Other slots of one call are distinct. Tokens without heads, x[B, S, C], go to a cache[N, T, C].
//     A cache has x's element type or e4m3, to which numbers are rounded then, those beyond its ±448 to that (base/e4m3.h).
//   cached_attention(q[B, 1, H, E], k[B, 1, K, E], v[B, 1, K, U], keys[N, T, K, E], values[N, T, K, U], positions[B, 1],
//       slots[B][, sinks[H]][, biases[H, 2M + 1] or biases[H, P, P]]) → o[B, 1, H, U], keys, values
//     One more token of each sample: k and v go to the caches as by cache_update, and o is as of attention (attention.cpp)
//     under a causal mask, with its attributes but dropout, of the query and the keys at the positions up to its own, within
//     the attribute window > 0: the key of position j is in row j mod T. A cache that forgets has as many rows as the window
//     at least; with the attribute invariant 1, o has the bits of attention's, and a cache forgets nothing. Of a sample whose
//     slot is −1, o = 0. Scores and sums in fp32 or wider, of keys and values as the caches hold them, the new token's too.
//   take_tokens(x[B, S, D…], index[B, R] int32) → y[B, R, D…]
//     y_br = x_b,index_br: the tokens whose logits are wanted.
//
// The cache is a state (graph/state.h), moved in place, and split with its heads where an axis splits those of weights; along an axis that splits samples a rank has the
// slots of its own samples, and the numbers in `slots` count from the first slot that the rank has. No gradients.
#include <algorithm>

#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

absl::Status CheckPlaces(TypeSpan inputs, std::size_t positions, std::string_view op) {
  const Shape& x = inputs[0].shape;
  const Shape& of_tokens = inputs[positions].shape;
  const Shape& of_samples = inputs[positions + 1].shape;
  if (x.rank() >= 3 && of_tokens == Shape{x[0], x[1]} && of_samples == Shape{x[0]}) return absl::OkStatus();
  return Internal("{} of {} at positions {} of slots {}", op, x.ToString(), of_tokens.ToString(),
                  of_samples.ToString());
}

Types InferUpdate(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 4, 4, "cache_update"));
  RETURN_IF_ERROR(CheckPlaces(inputs, 2, "cache_update"));
  const Shape& x = inputs[0].shape;
  const Shape& cache = inputs[1].shape;
  bool fits = cache.rank() == x.rank() && x.rank() <= 4 && CanCache(inputs[1], inputs[0]);
  for (int dim = 2; fits && dim < x.rank(); ++dim) fits = cache[dim] == x[dim];
  if (!fits) return Internal("a cache {} of {}", cache.ToString(), x.ToString());
  return std::vector<TensorType>{inputs[1]};
}

Work UpdateWork(TypeSpan inputs, TypeSpan, const Attributes&) { return {.bytes = 2 * Bytes(inputs[0])}; }

// A cache lies as cached_attention wants it: whole only where its heads cannot be split, even if x is whole.
std::vector<Signature> UpdateSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement heads = Placement::S(2);
  const Signature whole = {{r, r, r, r}, {r}};
  if (!rule.parameters.Has(Dim::kHead)) return {SampleSplit(4, 1), whole};
  if (inputs[0].shape.rank() == 3) return {whole};
  return {{{heads, heads, r, r}, {heads}}, {whole.inputs, whole.outputs, /*fallback=*/true}};
}

constexpr std::size_t kKeys = 3, kValues = 4, kPositions = 5, kWeights = 7;  // inputs of cached_attention

absl::Status CheckCache(const TensorType& x, const TensorType& cache) {
  const Shape& of = cache.shape;
  if (of.rank() == 4 && x.shape.rank() == 4 && of[2] == x.shape[2] && of[3] == x.shape[3] &&
      CanCache(cache, x))
    return absl::OkStatus();
  return Internal("a cache {} of {}", of.ToString(), x.shape.ToString());
}

Types InferCachedAttention(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, kWeights, kWeights + 2, "cached_attention"));
  RETURN_IF_ERROR(CheckPlaces(inputs, kPositions, "cached_attention"));
  const Shape& q = inputs[0].shape;
  const Shape& k = inputs[1].shape;
  const Shape& v = inputs[2].shape;
  RETURN_IF_ERROR(CheckCache(inputs[1], inputs[kKeys]));
  RETURN_IF_ERROR(CheckCache(inputs[2], inputs[kValues]));
  if (inputs[kKeys].dtype != inputs[kValues].dtype) return Internal("caches of two element types");
  if (q.rank() != 4 || q[1] != 1 || k[3] != q[3] || q[2] % k[2] != 0 || v[2] != k[2] || k[0] != q[0] ||
      v[0] != q[0])
    return Internal("cached_attention of q {} with k {} and v {}", q.ToString(), k.ToString(), v.ToString());
  std::size_t expected = kWeights;
  const bool has_sinks = inputs.size() > expected && inputs[expected].shape.rank() == 1;
  if (has_sinks && inputs[expected++].shape != Shape{q[2]})
    return Internal("{} sinks for {} heads", inputs[expected - 1].shape.ToString(), q[2]);
  const std::int64_t most = attributes.Int("distance", 0);
  if (most > 0 && (inputs.size() <= expected || inputs[expected++].shape != Shape{q[2], 2 * most + 1}))
    return Internal("cached_attention without biases of {} heads and distances up to {}", q[2], most);
  const std::int64_t pairs = attributes.Int("pairs", 0);
  if (pairs > 0 && (inputs.size() <= expected || inputs[expected++].shape != Shape{q[2], pairs, pairs}))
    return Internal("cached_attention without biases of {} heads and {} places", q[2], pairs);
  if (inputs.size() != expected)
    return Internal("cached_attention of {} inputs, not {}", inputs.size(), expected);
  TensorType o = Leading(inputs[0], 3, inputs[0].dtype);
  o.Append(inputs[2], 3);
  return std::vector<TensorType>{o, inputs[kKeys], inputs[kValues]};
}

// Where the caches are full: what they hold of the samples' slots is read once.
Work CachedAttentionWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  const Shape& q = inputs[0].shape;
  const Shape& keys = inputs[kKeys].shape;
  const double samples = static_cast<double>(q[0]) / static_cast<double>(keys[0]);
  const double width = static_cast<double>(q[3] + inputs[2].shape[3]);
  const double pairs = static_cast<double>(q.elements(0, 3)) * static_cast<double>(keys[1]);
  return {.flops = 2 * width * pairs,
          .bytes = samples * (Bytes(inputs[kKeys]) + Bytes(inputs[kValues])) + Bytes(inputs.first(3)) +
                   Bytes(outputs[0]),
          .product_flops = 2 * width * pairs,
          .queries = static_cast<double>(q.elements(0, 3)),
          .head = static_cast<double>(q[3])};
}

std::vector<Signature> CachedAttentionSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement heads = Placement::S(2);
  const bool splits_heads = rule.parameters.Has(Dim::kHead);
  std::vector<Signature> signatures = {{{r, r, r, r, r, r, r}, {r, r, r}, splits_heads}};
  if (splits_heads) {
    signatures.insert(signatures.begin(), {{heads, heads, heads, heads, heads, r, r}, {heads, heads, heads}});
  } else {
    signatures.push_back(SampleSplit(kWeights, 3));
  }
  for (Signature& signature : signatures) signature.inputs.resize(inputs.size(), r);
  if (splits_heads)
    std::fill(signatures[0].inputs.begin() + kWeights, signatures[0].inputs.end(), Placement::S(0));
  return signatures;
}

Types InferTake(TypeSpan inputs, const Attributes&) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "take_tokens"));
  const Shape& x = inputs[0].shape;
  const Shape& index = inputs[1].shape;
  if (x.rank() < 2 || index.rank() != 2 || index[0] != x[0])
    return Internal("take_tokens {} of {}", index.ToString(), x.ToString());
  TensorType y = Leading(inputs[0], 1, inputs[0].dtype);
  y.Append(inputs[1], 1);
  for (int dim = 2; dim < x.rank(); ++dim) y.Append(inputs[0], dim);
  return std::vector<TensorType>{y};
}

Work TakeWork(TypeSpan, TypeSpan outputs, const Attributes&) { return {.bytes = 2 * Bytes(outputs)}; }

std::vector<Signature> TakeSignatures(TypeSpan inputs, const Attributes&, const AxisRule&) {
  const Placement r = Placement::R();
  std::vector<Signature> signatures = {{{r, r}, {r}}, SampleSplit(2, 1)};
  for (int dim = 2; dim < inputs[0].shape.rank(); ++dim)
    signatures.push_back({{Placement::S(dim), r}, {Placement::S(dim)}});
  return signatures;
}

}  // namespace

const OpDef kCacheUpdate{.name = "cache_update",
                         .infer = InferUpdate,
                         .work = UpdateWork,
                         .signatures = UpdateSignatures,
                         .in_place_input = 1};
const OpDef kCachedAttention{.name = "cached_attention",
                             .infer = InferCachedAttention,
                             .family = Family::kAttention,
                             .work = CachedAttentionWork,
                             .signatures = CachedAttentionSignatures,
                             .moves = 0b110};
const OpDef kTakeTokens{
    .name = "take_tokens", .infer = InferTake, .work = TakeWork, .signatures = TakeSignatures};

}  // namespace engine::ops

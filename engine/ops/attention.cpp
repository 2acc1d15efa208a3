// Attention (Vaswani et al., arXiv:1706.03762; grouped queries: Ainslie et al., arXiv:2305.13245)
//
//   attention(q[B, S, H, E], k[B, T, K, E], v[B, T, K, U][, positions[B, S] int32][, spans[B, S, 2] int32][, sinks[H]]
//       [, biases[H, 2M + 1] or biases[H, P, P]])
//       → o[B, S, H, U], lse[B, S, H]                                        (lse in fp32 or wider)
//     Head h reads kv head h / (H/K). Values may be narrower or wider than keys (U ≠ E), as those of multi-head latent
//     attention are (DeepSeek-V2, arXiv:2405.04434). Key j stands at position j: keys are whole along the sequence and in
//     natural order, while q may be any slice of its own. Queries and keys may be of one sequence or of two
//     (cross attention, T ≠ S).
//     score(i, j) = scale · q_i·k_j   for the keys that the attribute mask lets query i see:
//       causal (default)   0 ≤ positions_i − j (and < window, where the attribute window > 0)
//       none               all of them; there is no window
//     With spans, query i sees of these only the keys spans_i0 ≤ j < spans_i1: those of its document, where a sample is
//     several documents packed one behind the other. Along a sample neither bound may fall from one position to the next
//     (kernels leave out blocks of keys by that). A query that sees no key has o = 0, lse = −∞ and no gradient.
//     Before the mask, attribute softcap c > 0 keeps scores between −c and c (Gemma 2, arXiv:2408.00118):
//     score ← c·tanh(score/c). Then attribute alibi = 1, which needs the causal mask, adds a linear bias,
//     score ← score − slope_h·(positions_i − j) (Press et al., arXiv:2108.12409; slopes: graph/alibi.h).
//     Biases, of which there are some where attribute distance = M > 0, are added there too, under any mask:
//     score ← score + biases[h, d + M] with d = j − positions_i, held between −M and M. Such a bias depends on the distance
//     of key and query alone, as that of T5 does (Raffel et al., arXiv:1910.10683), which relative_bias makes of its table.
//     Where attribute pairs = P > 0, each pair of places below P has a bias of its own instead, score ← score +
//     biases[h, positions_i, j]; all samples have the same positions then.
//     lse = log Σ_j exp(score),   o = Σ_j exp(score − lse) · v_j
//     A sink σ_h is the score of one more key, which every query sees and whose value is zero (gpt-oss; Xiao et al.,
//     arXiv:2309.17453): lse = log(exp(σ_h) + Σ_j exp(score)). Neither cap, bias nor dropout touch it.
//     Dropout (attributes dropout > 0, stream) zeroes probabilities with that probability and scales the
//     others by 1/(1 − dropout). The mask is a function of (sample, head, positions_i, j): the same in every layout.
//     Attribute invariant, where it is 1 and there is no dropout: the bits of o and lse at a position depend on its query and
//     the keys that it sees alone, and cached_attention with the attribute gives the same.
//     Without a mask, dropout and biases nothing depends on positions, and there need be none. Which input is what:
//     graph/attention_inputs.h.
//   attention_grad(q, k, v[, positions][, spans], o, lse, d_o[, sinks][, biases]) → dq, dk, dv[, d_sinks][, d_biases]
//     P = exp(score − lse),  dP = d_o·v,  dS = P·(dP − Σ_U d_o·o), times 1 − tanh²(score/c) of the uncapped score
//     dq = scale·dS·k,  dk = scale·dSᵀ·q,  dv = Pᵀ·d_o
//     d_sinks_h = −Σ_i exp(σ_h − lse_i)·Σ_U d_o·o
//     d_biases[h, m] = Σ P·(dP − Σ_U d_o·o) over the samples' pairs of query and key that biases[h, m] is added to; of a bias
//     for each pair over the samples alone
//     (d_sinks and d_biases in fp32 or wider)
//
// FLOPs count the pairs that the mask and the window leave, as if a sample were one document: with spans they are an upper
// bound, because the program is made before the data is known. They are S·T of a head without a mask, under a causal one S(S+1)/2 without a
// window, W·S − W(W−1)/2 within one of W. The forward pass has a product of 2·E FLOPs a pair and one of 2·U, the backward pass three and two. One of
// the three makes the scores again, as the kernels do; Work::product_flops leaves it out. A slice of the sequence is one of a
// zigzag split (plan/layout.h): without a window all slices have as many pairs, with one the middle has most.
//
// Placement: split batch; split heads (Ulysses: the sequence whole); or split query sequence with whole k and
// v, whose gradients are then partial. Positions and spans are split as queries are, and whole where heads are split. Sinks and
// biases are split with the heads where the axis splits weights; elsewhere they are whole, and their gradient is partial.
//
// Backward saves q, k, v, o, lse; never the S×T scores (as FlashAttention, arXiv:2205.14135).
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "engine/graph/attention_inputs.h"
#include "engine/graph/mask.h"
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

using graph::AttentionInputs;

constexpr std::size_t kQkv = 3;        // inputs that positions stand behind: q, k, v
constexpr std::size_t kGradients = 3;  // of attention_grad, behind positions and spans: o, lse, d_o

AttentionInputs Resolve(TypeSpan inputs, bool backward) {
  return graph::InputsOfAttention(inputs, {.backward = backward});
}

absl::Status CheckForm(const Attributes& attributes) {
  if (attributes.Has("softcap") && attributes.Float("softcap") < 0)
    return Internal("attention with a soft cap of {}", attributes.Float("softcap"));
  if (graph::IsCausal(attributes)) return absl::OkStatus();
  const std::string& mask = attributes.String("mask");
  if (mask != "none") return Internal("attention with the mask {}, which is neither causal nor none", mask);
  if (attributes.Int("alibi", 0) != 0) return Internal("linear biases of attention need a causal mask");
  const std::int64_t window = attributes.Int("window", 0);
  if (window == 0) return absl::OkStatus();
  return Internal("attention within a window of {} needs a causal mask", window);
}

// Biases are there where attribute distance or pairs says so, and are of these heads and of distances up to that, or so many places.
absl::Status CheckBiases(TypeSpan inputs, const Attributes& attributes, const AttentionInputs& at) {
  const std::int64_t most = attributes.Int("distance", 0);
  const std::int64_t pairs = attributes.Int("pairs", 0);
  if (most < 0 || pairs < 0 || (most > 0 && pairs > 0))
    return Internal("attention with biases of distances up to {} and of {} places", most, pairs);
  if (!at.has_biases()) {
    if (most == 0 && pairs == 0) return absl::OkStatus();
    return Internal("attention without biases, which its attributes distance = {} and pairs = {} ask for",
                    most, pairs);
  }
  const std::int64_t heads = inputs[0].shape[2];
  const Shape& biases = inputs[at.biases].shape;
  if (most > 0 && biases == Shape{heads, 2 * most + 1}) return absl::OkStatus();
  if (pairs > 0 && biases == Shape{heads, pairs, pairs} && inputs[1].shape[1] <= pairs)
    return absl::OkStatus();
  return Internal(
      "biases {} of attention with {} heads, {} keys and the attributes distance = {} and pairs = {}",
      biases.ToString(), heads, inputs[1].shape[1], most, pairs);
}

Types InferAttention(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, kQkv, kQkv + 4, "attention"));
  RETURN_IF_ERROR(CheckForm(attributes));
  const AttentionInputs at = Resolve(inputs, /*backward=*/false);
  if (!at.has_positions() && graph::ReadsPositions(attributes))
    return Internal(
        "attention under a causal mask, with dropout or with biases needs the positions of its queries");
  const Shape& q = inputs[0].shape;
  const Shape& k = inputs[1].shape;
  const Shape& v = inputs[2].shape;
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4 || q[0] != k[0] || q[3] != k[3] || q[2] % k[2] != 0) {
    return Internal("attention of q {} with k {}", q.ToString(), k.ToString());
  }
  if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2])
    return Internal("attention of keys {} with values {}", k.ToString(), v.ToString());
  if (at.has_spans() && inputs[at.spans].shape != Shape{q[0], q[1], 2})
    return Internal("spans {} of queries {}", inputs[at.spans].shape.ToString(), q.ToString());
  if (at.has_sinks() && inputs[at.sinks].shape != Shape{q[2]})
    return Internal("{} sinks for {} heads", inputs[at.sinks].shape.ToString(), q[2]);
  RETURN_IF_ERROR(CheckBiases(inputs, attributes, at));
  TensorType o = Leading(inputs[0], 3, inputs[0].dtype);
  o.Append(inputs[2], 3);
  return std::vector<TensorType>{o, Leading(inputs[0], 3, StatisticsDType(inputs[0].dtype))};
}

Types InferAttentionGrad(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, kQkv + kGradients, kQkv + kGradients + 4, "attention_grad"));
  std::vector<TensorType> gradients = {inputs[0], inputs[1], inputs[2]};
  const AttentionInputs at = Resolve(inputs, /*backward=*/true);
  RETURN_IF_ERROR(CheckBiases(inputs, attributes, at));
  for (const std::size_t input : {at.sinks, at.biases}) {
    if (input == AttentionInputs::kNone) continue;
    const TensorType& of = inputs[input];
    gradients.push_back({.shape = of.shape, .dtype = StatisticsDType(of.dtype), .dims = of.dims});
  }
  return gradients;
}

// Keys that `count` queries in a row from position `first` on see, all together.
double PairsFrom(double first, double count, double window) {
  // Queries before position window − 1 see all keys up to their own.
  const double growing = window > 0 ? std::clamp(window - 1 - first, 0.0, count) : count;
  return growing * first + growing * (growing + 1) / 2 + (count - growing) * window;
}

// FLOPs of one product with keys over the pairs of a query slice of S out of T keys: of the slice that has most, the
// middle of the sequence, and of the mean one.
struct PairFlops {
  double most, mean;
};
PairFlops PairFlopsOf(TypeSpan inputs, const Attributes& attributes) {
  const Shape& q = inputs[0].shape;
  const double queries = static_cast<double>(q[1]);
  const double keys = static_cast<double>(inputs[1].shape[1]);
  const double window = static_cast<double>(attributes.Int("window", 0));
  const double each = 2.0 * static_cast<double>(q.elements()) /
                      queries;  // FLOPs of one (query, key) pair, over all samples and heads
  if (!graph::IsCausal(attributes)) return {each * queries * keys, each * queries * keys};
  return {each * PairsFrom((keys - queries) / 2, queries, window),
          each * PairsFrom(0, keys, window) * queries / keys};
}

Work WorkOf(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes, bool backward) {
  const PairFlops pair = PairFlopsOf(inputs, attributes);
  const double head = static_cast<double>(inputs[0].shape[3]);
  const double with_values = (backward ? 2 : 1) * static_cast<double>(inputs[2].shape[3]) / head;
  return {.flops = ((backward ? 3 : 1) + with_values) * pair.most,
          .bytes = Bytes(inputs) + Bytes(outputs),
          .product_flops = ((backward ? 2 : 1) + with_values) * pair.mean,
          .queries = Elements(inputs[0]) / head,
          .head = head,
          .backward = backward};
}
Work AttentionWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  return WorkOf(inputs, outputs, attributes, /*backward=*/false);
}
Work AttentionGradWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  return WorkOf(inputs, outputs, attributes, /*backward=*/true);
}

ValueIds AttentionGradient(GradientContext& context) {
  const graph::Node& node = context.node;
  std::vector<TensorType> types;
  for (const ValueId input : node.inputs) types.push_back(context.graph->value(input).type);
  const AttentionInputs at = Resolve(types, /*backward=*/false);
  ValueIds inputs = {node.inputs[0], node.inputs[1], node.inputs[2]};
  for (const std::size_t input : {at.positions, at.spans}) {
    if (input != AttentionInputs::kNone) inputs.push_back(node.inputs[input]);
  }
  inputs.insert(inputs.end(), {node.outputs[0], node.outputs[1], context.d_outputs[0]});
  ValueIds into = {kNoValue, kNoValue, kNoValue};
  for (const std::size_t input : {at.sinks, at.biases}) {
    if (input == AttentionInputs::kNone) continue;
    inputs.push_back(node.inputs[input]);
    into.push_back(context.accumulators[input]);
  }
  const ValueIds d = context.graph->Emit(kAttentionGrad, "d_" + node.name, inputs, node.attributes, into);
  ValueIds gradients = {d[0], d[1], d[2]};
  gradients.resize(node.inputs.size(), kNoValue);
  std::size_t output = kQkv;
  for (const std::size_t input : {at.sinks, at.biases}) {
    if (input == AttentionInputs::kNone) continue;
    if (into[output] == kNoValue) gradients[input] = d[output];
    ++output;
  }
  return gradients;
}

// Of an axis that splits heads and is none of weights, each rank reads its heads' part of whole sinks and biases.
Placement WeightsWithHeads(const AxisRule& rule) {
  return rule.parameters.Has(Dim::kHead) ? Placement::S(0) : Placement::R();
}

// The signatures, made for positions and without spans, for the inputs that there are. Spans are placed as positions.
std::vector<Signature> ForInputs(std::vector<Signature> signatures, const AttentionInputs& at) {
  for (Signature& signature : signatures) {
    const auto positions = signature.inputs.begin() + static_cast<std::ptrdiff_t>(kQkv);
    if (at.has_spans() && at.has_positions()) {
      signature.inputs.insert(positions, *positions);
    } else if (!at.has_spans() && !at.has_positions()) {
      signature.inputs.erase(positions);
    }
  }
  return signatures;
}

// Signatures with inputs for the sinks and biases that there are, and outputs for their gradients, appended. Where the axis
// splits weights, only those that split them, or the fallback.
std::vector<Signature> WithWeights(std::vector<Signature> signatures, const AttentionInputs& at,
                                   const AxisRule& rule, bool backward) {
  const int weights = (at.has_sinks() ? 1 : 0) + (at.has_biases() ? 1 : 0);
  if (weights == 0) return signatures;
  const bool splits = rule.parameters.Has(Dim::kHead);
  std::erase_if(signatures, [&](const Signature& signature) {
    return splits && !signature.fallback && signature.inputs[0] != Placement::S(2);
  });
  for (Signature& signature : signatures) {
    const Placement q = signature.inputs[0];
    const Placement weight = q == Placement::S(2) ? WeightsWithHeads(rule) : Placement::R();
    signature.inputs.insert(signature.inputs.end(), static_cast<std::size_t>(weights), weight);
    if (!backward) continue;
    const Placement gradient = q.replicated() || weight.split() ? weight : Placement::P();
    signature.outputs.insert(signature.outputs.end(), static_cast<std::size_t>(weights), gradient);
  }
  return signatures;
}

std::vector<Signature> AttentionSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement batch = Placement::S(0);
  const Placement sequence = Placement::S(1);
  const Placement heads = Placement::S(2);
  std::vector<Signature> signatures = {{{heads, heads, heads, r}, {heads, heads}},
                                       {{sequence, r, r, sequence}, {sequence, sequence}},
                                       {{batch, batch, batch, batch}, {batch, batch}},
                                       {{r, r, r, r}, {r, r}, rule.parameters.Has(Dim::kHead)}};
  const AttentionInputs at = Resolve(inputs, /*backward=*/false);
  return WithWeights(ForInputs(std::move(signatures), at), at, rule, /*backward=*/false);
}

std::vector<Signature> AttentionGradSignatures(TypeSpan inputs, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement p = Placement::P();
  const Placement batch = Placement::S(0);
  const Placement sequence = Placement::S(1);
  const Placement heads = Placement::S(2);
  std::vector<Signature> signatures = {
      {{heads, heads, heads, r, heads, heads, heads}, {heads, heads, heads}},
      {{sequence, r, r, sequence, sequence, sequence, sequence}, {sequence, p, p}},
      {{batch, batch, batch, batch, batch, batch, batch}, {batch, batch, batch}},
      {{r, r, r, r, r, r, r}, {r, r, r}, rule.parameters.Has(Dim::kHead)}};
  const AttentionInputs at = Resolve(inputs, /*backward=*/true);
  return WithWeights(ForInputs(std::move(signatures), at), at, rule, /*backward=*/true);
}

}  // namespace

const OpDef kAttention{.name = "attention",
                       .infer = InferAttention,
                       .family = Family::kAttention,
                       .work = AttentionWork,
                       .gradient = AttentionGradient,
                       .signatures = AttentionSignatures};
const OpDef kAttentionGrad{.name = "attention_grad",
                           .infer = InferAttentionGrad,
                           .family = Family::kAttention,
                           .work = AttentionGradWork,
                           .signatures = AttentionGradSignatures,
                           .accumulates = 0b11000};

}  // namespace engine::ops

// Attention over a cache of latents: multi-head latent attention, token by token (DeepSeek-V2, arXiv:2405.04434, section 2.1)
//
//   cached_latent_attention(q[B, 1, H, C], r[B, 1, H, M], c[B, 1, C], k[B, 1, 1, R], latents[N, T, C], shared[N, T, 1, R],
//       positions[B, 1] int32, slots[B] int32) → z[B, 1, H, C], latents, shared
//     One more token of each sample: its latent c and the part k of its key that all heads share go to the caches as by
//     cache_update (cached_attention.cpp). Key j of head h is made of its latent and of its shared part, so that
//       score_hj = scale · (q_h · c_j + r_h,first…first+R−1 · k_j),   z_h = Σ_j softmax(score_h)_j c_j,
//     over the positions up to the token's own, within the attribute window > 0 as of cached_attention. q_h is the part of head h's
//     query that meets keys made of latents, times their weight, and z_h times the weight of values is what attention gives
//     (head_linear.cpp): latents are read once for all heads, as keys and as values. Of a sample whose slot is −1, z = 0.
//     Scores and sums in fp32 or wider. Attributes scale, first, window (0: none).
//
// Placement: heads of queries may be split, and then latents, shared parts and their caches are whole; or samples, with slots as of
// cached_attention. No gradients.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

// Inputs.
constexpr std::size_t kQuery = 0, kRest = 1, kLatent = 2, kShared = 3, kLatents = 4, kShareds = 5;
constexpr std::size_t kLatentPositions = 6, kLatentSlots = 7, kLatentInputs = 8;

Types InferCachedLatentAttention(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, kLatentInputs, kLatentInputs, "cached_latent_attention"));
  const Shape& q = inputs[kQuery].shape;
  const Shape& rest = inputs[kRest].shape;
  const Shape& c = inputs[kLatent].shape;
  const Shape& k = inputs[kShared].shape;
  const Shape& latents = inputs[kLatents].shape;
  const Shape& shared = inputs[kShareds].shape;
  if (q.rank() != 4 || rest.rank() != 4 || c.rank() != 3 || k.rank() != 4 || latents.rank() != 3 ||
      shared.rank() != 4)
    return Internal("cached_latent_attention of q {}, {}", q.ToString(), rest.ToString());
  const std::int64_t samples = q[0];
  const std::int64_t first = attributes.Int("first", 0);
  bool fits = q[1] == 1 && rest[0] == samples && rest[1] == 1 && rest[2] == q[2] && first >= 0 &&
              first + k[3] <= rest[3];
  fits = fits && c == Shape{samples, 1, q[3]} && k == Shape{samples, 1, 1, k[3]};
  fits = fits && latents == Shape{latents[0], latents[1], q[3]} &&
         shared == Shape{latents[0], latents[1], 1, k[3]};
  fits = fits && inputs[kLatentPositions].shape == Shape{samples, 1} &&
         inputs[kLatentSlots].shape == Shape{samples};
  for (const std::size_t i : {kRest, kLatent, kShared})
    fits = fits && inputs[i].dtype == inputs[kQuery].dtype;
  fits =
      fits && CanCache(inputs[kLatents], inputs[kLatent]) && inputs[kShareds].dtype == inputs[kLatents].dtype;
  if (!fits) {
    return Internal(
        "cached_latent_attention of q {}, {} from {} on, latent {} and shared {} with caches {} and {}",
        q.ToString(), rest.ToString(), first, c.ToString(), k.ToString(), latents.ToString(),
        shared.ToString());
  }
  return std::vector<TensorType>{inputs[kQuery], inputs[kLatents], inputs[kShareds]};
}

// Where the caches are full: what they hold of the samples' slots is read once.
Work CachedLatentAttentionWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  const Shape& q = inputs[kQuery].shape;
  const Shape& latents = inputs[kLatents].shape;
  const std::int64_t shared = inputs[kShared].shape[3];
  const double samples = static_cast<double>(q[0]) / static_cast<double>(latents[0]);
  const double queries = static_cast<double>(q[0] * q[2]);
  const double pairs = queries * static_cast<double>(latents[1]);
  const double flops = 2 * pairs * static_cast<double>(2 * q[3] + shared);
  const double rest = queries * static_cast<double>(shared * SizeOf(inputs[kRest].dtype));
  return {
      .flops = flops,
      .bytes = samples * (Bytes(inputs[kLatents]) + Bytes(inputs[kShareds])) + rest + Bytes(inputs[kQuery]) +
               Bytes(inputs[kLatent]) + Bytes(inputs[kShared]) + Bytes(outputs[0]),
      .product_flops = flops,
      .queries = queries,
      .head = static_cast<double>(q[3]) + static_cast<double>(shared) / 2};  // of two products, in the mean
}

std::vector<Signature> CachedLatentAttentionSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement heads = Placement::S(2);
  const Signature whole = {{r, r, r, r, r, r, r, r}, {r, r, r}};
  if (!rule.parameters.Has(Dim::kHead)) return {SampleSplit(kLatentInputs, 3), whole};
  return {{{heads, heads, r, r, r, r, r, r}, {heads, r, r}},
          {whole.inputs, whole.outputs, /*fallback=*/true}};
}

}  // namespace

const OpDef kCachedLatentAttention{.name = "cached_latent_attention",
                                   .infer = InferCachedLatentAttention,
                                   .family = Family::kAttention,
                                   .work = CachedLatentAttentionWork,
                                   .signatures = CachedLatentAttentionSignatures,
                                   .moves = 0b110};

}  // namespace engine::ops

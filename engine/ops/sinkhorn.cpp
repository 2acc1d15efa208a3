// Sinkhorn: choices of a router that are balanced by themselves (Clark et al., arXiv:2202.01169, section 3.1)
//
//   sinkhorn(logits[b, …, E]) → ranks[b, …, E]
//     for each sample, of T tokens: C = exp(logits), d1[e] = 1; then attribute rounds times
//       d0[t] = (1/T) / (Σ_e C[t, e] · d1[e] + 1e-8),   d1[e] = (1/E) / (Σ_t d0[t] · C[t, e] + 1e-8)
//     ranks = d0 · C · d1: their sums are 1/T over the experts and 1/E over the tokens, the nearer the more rounds.
//
// Megatron-LM goes on until d1 hardly changes, which the host has to see; 8 to 16 rounds reach that on ordinary logits. It
// counts over all tokens that a rank has of a microbatch; here it is whole samples, so that every layout chooses alike. The
// largest logit of a token is taken off before exp, which d0 makes good again but for the 1e-8. At least float32.
//
// Placement: samples are whole. No gradient: what route makes of ranks are choices.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferSinkhorn(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 1, 1, "sinkhorn"));
  if (inputs[0].shape.rank() < 2 || attributes.Int("rounds") < 1)
    return Internal("{} rounds of sinkhorn on {}", attributes.Int("rounds"), inputs[0].shape.ToString());
  return std::vector<TensorType>{inputs[0]};
}

Work SinkhornWork(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) {
  const double rounds = static_cast<double>(attributes.Int("rounds"));
  return {.flops = 6.0 * rounds * Elements(inputs[0]), .bytes = rounds * Bytes(inputs) + Bytes(outputs)};
}

// Along tp samples are never split where ep splits them.
std::vector<Signature> SinkhornSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const Placement samples = Placement::S(0);
  if (rule.activations.Has(Dim::kSequence)) return {{{r}, {r}}};
  return {{{r}, {r}}, {{samples}, {samples}}};
}

}  // namespace

const OpDef kSinkhorn{
    .name = "sinkhorn", .infer = InferSinkhorn, .work = SinkhornWork, .signatures = SinkhornSignatures};

}  // namespace engine::ops

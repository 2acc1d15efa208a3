// What generation asks of logits, so that the host draws a token without reading all of them.
//
//   top_logits(logits[B, R, V], temperatures[B]) → tokens[B, N] int32, values[B, N], log_sums[B, 2]
//     Of each sample's last token, z = logits_b,R−1, over the classes v < attribute classes: rows that only pad the vocabulary
//     take no part. values: the N = attribute count largest z_v, the largest first, and tokens their v; of equal ones those of
//     lower ids come first. Where there are fewer classes than N, the rest are −∞ with token −1.
//     log_sums: log Σ_v exp(z_v) and log Σ_v exp(z_v / T), where T = temperatures_b > 0. They are not finite where a logit is NaN
//     or +∞, or all are −∞, and then nothing is said of the others.
//     temperatures, values and log_sums in fp32 or wider.
//
// Placement: a rank that holds some columns gives the N / ranks largest of its own, so that the N that all ranks give together
// are no longer the N largest: of them, those hold that are before the last of every rank. So these outputs are for a host that knows it, and no
// op reads them. log_sums are partial under
// log-sum-exp. Samples may be split.
// No gradient.
#include "engine/ops/common.h"
#include "engine/ops/ops.h"

namespace engine::ops {
namespace {

Types InferTop(TypeSpan inputs, const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectInputs(inputs, 2, 2, "top_logits"));
  const Shape& logits = inputs[0].shape;
  const DType dtype = StatisticsDType(inputs[0].dtype);
  if (logits.rank() != 3 || inputs[1].shape != Shape{logits[0]} || inputs[1].dtype != dtype) {
    return Internal("top_logits of {} with temperatures {} {}", logits.ToString(), Name(inputs[1].dtype),
                    inputs[1].shape.ToString());
  }
  if (attributes.Int("count") < 1) return Internal("{} of the largest logits", attributes.Int("count"));
  TensorType tokens = Leading(inputs[0], 1, DType::kI32);
  tokens.shape.push_back(attributes.Int("count"));
  tokens.dims.push_back(Dim::kVocab);
  TensorType values = tokens;
  values.dtype = dtype;
  TensorType log_sums = Leading(inputs[0], 1, dtype);
  log_sums.shape.push_back(2);
  log_sums.dims.push_back(Dim::kOther);
  return std::vector<TensorType>{tokens, values, log_sums};
}

Work TopWork(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  const double read = Elements(inputs[0]) / static_cast<double>(inputs[0].shape[1]);
  return {.flops = 8 * read,
          .bytes = Bytes(inputs[0]) / static_cast<double>(inputs[0].shape[1]) + Bytes(outputs)};
}

std::vector<Signature> TopSignatures(TypeSpan, const Attributes&, const AxisRule& rule) {
  const Placement r = Placement::R();
  const bool splits_classes = rule.parameters.Has(Dim::kVocab);
  std::vector<Signature> signatures = {
      {{Placement::S(2), r}, {Placement::S(1), Placement::S(1), Placement::P(Reduction::kLogSumExp)}},
      {{r, r}, {r, r, r}, splits_classes}};
  if (!splits_classes) signatures.push_back(SampleSplit(2, 3));
  return signatures;
}

}  // namespace

const OpDef kTopLogits{.name = "top_logits", .infer = InferTop, .work = TopWork, .signatures = TopSignatures};

}  // namespace engine::ops

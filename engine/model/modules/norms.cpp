#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

// The gain: as many trailing dims of x as `over` says.
absl::StatusOr<graph::ValueId> Gain(StepContext& step, Sizes* sizes) {
  const int rank = step.type(step.input()).shape.rank();
  const int over = static_cast<int>(step.Int("over"));
  if (over >= rank) {
    return step.ErrorIn("over", fmt::format("{} has no {} dims to normalise over and one more",
                                            step.type(step.input()).shape.ToString(), over));
  }
  *sizes = step.TrailingSizes(step.input(), rank - over);
  const bool from_zero = step.Number("gain_offset") != 0;
  return step.Parameter("weight", graph::Role::kGain, *sizes,
                        from_zero ? StepContext::Zeros() : StepContext::Ones());
}

graph::Attributes NormAttributes(const StepContext& step) {
  graph::Attributes attributes = {{"epsilon", step.Number("epsilon")}};
  if (const double offset = step.Number("gain_offset"); offset != 0) attributes.Set("gain_offset", offset);
  return attributes;
}

absl::StatusOr<graph::ValueIds> EmitRms(StepContext& step) {
  Sizes sizes;
  ASSIGN_OR_RETURN(const graph::ValueId gain, Gain(step, &sizes));
  ASSIGN_OR_RETURN(const graph::ValueId y,
                   step.Emit1(ops::kRmsNorm, step.path(), {step.input(), gain}, NormAttributes(step)));
  return graph::ValueIds{y};
}

absl::StatusOr<graph::ValueIds> EmitLayer(StepContext& step) {
  Sizes sizes;
  ASSIGN_OR_RETURN(const graph::ValueId gain, Gain(step, &sizes));
  ASSIGN_OR_RETURN(const graph::ValueId bias,
                   step.Parameter("bias", graph::Role::kBias, sizes, StepContext::Zeros()));
  ASSIGN_OR_RETURN(const graph::ValueId y, step.Emit1(ops::kLayerNorm, step.path(),
                                                      {step.input(), gain, bias}, NormAttributes(step)));
  return graph::ValueIds{y};
}

std::vector<AttributeDef> NormKeys() {
  return {
      {.name = "epsilon",
       .kind = AttributeKind::kNumber,
       .initial = "1e-5",
       .doc = "Added to the variance, or to the mean square.",
       .min = 0,
       .open = true},
      {.name = "over",
       .kind = AttributeKind::kInteger,
       .initial = "1",
       .doc = "How many trailing dims are normalised together: 2 for [heads, features] of q and k as one.",
       .min = 1,
       .max = 6},
      {.name = "gain_offset",
       .kind = AttributeKind::kNumber,
       .initial = "0",
       .doc = "Added to the weight, which then begins at 0: 1 gives Gemma's 1 + w.",
       .min = 0,
       .max = 1}};
}

}  // namespace

const ModuleDef kRmsNormModule{
    .name = "rms_norm",
    .doc = "y = x / √(mean(x²) + ε) · w (Zhang & Sennrich, arXiv:1910.07467), over the last dim.",
    .reads = "x",
    .parameters = "NAME.weight [last dims], ones; role gain",
    .gives = "as x",
    .attributes = NormKeys(),
    .emit = EmitRms};

const ModuleDef kLayerNormModule{
    .name = "layer_norm",
    .doc = "y = (x − mean) / √(variance + ε) · w + b (Ba et al., arXiv:1607.06450), over the last dim.",
    .reads = "x",
    .parameters = "NAME.weight [last dims], ones; role gain. NAME.bias [last dims], zeros; role bias",
    .gives = "as x",
    .attributes = NormKeys(),
    .emit = EmitLayer};

}  // namespace engine::model

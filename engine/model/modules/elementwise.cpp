#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitDropout(StepContext& step) {
  const double p = step.Number("p");
  if (!step.options().dropout || p == 0) return graph::ValueIds{step.input()};
  ASSIGN_OR_RETURN(const graph::ValueId y, step.Emit1(ops::kDropout, step.path(), {step.input()},
                                                      {{"p", p}, {"stream", step.path()}}));
  return graph::ValueIds{y};
}

absl::StatusOr<graph::ValueIds> EmitAdd(StepContext& step) {
  const Shape& a = step.type(step.input(0)).shape;
  const Shape& b = step.type(step.input(1)).shape;
  if (a != b)
    return step.Error(
        fmt::format("it adds two values of one shape, not {} and {}", a.ToString(), b.ToString()));
  ASSIGN_OR_RETURN(const graph::ValueId y,
                   step.Emit1(ops::kAdd, step.path(), {step.input(0), step.input(1)}));
  return graph::ValueIds{y};
}

// Whether b has one number where a has its last dim.
bool IsFactorOfRows(const Shape& a, const Shape& b) {
  if (a.rank() == 0 || a.rank() != b.rank() || b[b.rank() - 1] != 1) return false;
  for (int dim = 0; dim + 1 < a.rank(); ++dim) {
    if (a[dim] != b[dim]) return false;
  }
  return true;
}

absl::StatusOr<graph::ValueIds> EmitMultiply(StepContext& step) {
  const Shape& a = step.type(step.input(0)).shape;
  const Shape& b = step.type(step.input(1)).shape;
  const bool by_row = a != b && IsFactorOfRows(a, b);
  if (a != b && !by_row)
    return step.Error(
        fmt::format("it multiplies two values of one shape, or rows by a number each, not {} and {}",
                    a.ToString(), b.ToString()));
  ASSIGN_OR_RETURN(const graph::ValueId y, step.Emit1(by_row ? ops::kScaleRows : ops::kMultiply, step.path(),
                                                      {step.input(0), step.input(1)}));
  return graph::ValueIds{y};
}

absl::StatusOr<graph::ValueIds> EmitScale(StepContext& step) {
  ASSIGN_OR_RETURN(const graph::ValueId y,
                   step.Emit1(ops::kScale, step.path(), {step.input()}, {{"by", step.Number("by")}}));
  return graph::ValueIds{y};
}

absl::StatusOr<graph::ValueIds> EmitSoftcap(StepContext& step) {
  ASSIGN_OR_RETURN(const graph::ValueId y,
                   step.Emit1(ops::kSoftcap, step.path(), {step.input()}, {{"cap", step.Number("cap")}}));
  return graph::ValueIds{y};
}

}  // namespace

const ModuleDef kMultiplyModule{
    .name = "multiply",
    .doc = "a · b, element by element; or each row of a by the one number that b has for it.",
    .reads = "a, and b of its shape or with a last dim of 1",
    .gives = "as a",
    .least_inputs = 2,
    .most_inputs = 2,
    .emit = EmitMultiply};

const ModuleDef kScaleModule{.name = "scale",
                             .doc = "x times a number.",
                             .reads = "x",
                             .gives = "as x",
                             .attributes = {{.name = "by",
                                             .kind = AttributeKind::kNumber,
                                             .doc = "The number: \"D**0.5\".",
                                             .min = -1e9,
                                             .max = 1e9,
                                             .required = true}},
                             .emit = EmitScale};

const ModuleDef kSoftcapModule{
    .name = "softcap",
    .doc = "cap · tanh(x / cap), which stays between −cap and cap (Gemma 2, arXiv:2408.00118).",
    .reads = "x",
    .gives = "as x",
    .attributes = {{.name = "cap",
                    .kind = AttributeKind::kNumber,
                    .doc = "The bound.",
                    .min = 1e-6,
                    .max = 1e9,
                    .required = true}},
    .emit = EmitSoftcap};

const ModuleDef kDropoutModule{
    .name = "dropout",
    .doc =
        "Zeroes each element with probability p in training and scales the others by "
        "1/(1 − p). The draws go by the step's name.",
    .reads = "x",
    .gives = "as x",
    .attributes = {{.name = "p",
                    .kind = AttributeKind::kNumber,
                    .doc = "Probability.",
                    .min = 0,
                    .max = 1,
                    .open_end = true,
                    .required = true}},
    .emit = EmitDropout};

const ModuleDef kAddModule{.name = "add",
                           .doc = "a + b.",
                           .reads = "a and b of one shape",
                           .gives = "as a",
                           .least_inputs = 2,
                           .most_inputs = 2,
                           .emit = EmitAdd};

}  // namespace engine::model

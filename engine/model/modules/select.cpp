#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitSelect(StepContext& step) {
  const Shape& x = step.type(step.input()).shape;
  const std::int64_t token = step.Int("token");
  if (x.rank() < 3 || token >= x[1]) {
    return step.ErrorIn("token", fmt::format("there is no token {} in {}", token, x.ToString()));
  }
  ASSIGN_OR_RETURN(const graph::ValueId y,
                   step.Emit1(ops::kSelectToken, step.path(), {step.input()}, {{"index", token}}));
  return graph::ValueIds{y};
}

}  // namespace

const ModuleDef kSelectModule{.name = "select",
                              .doc = "One token of each sequence.",
                              .reads = "x [B, S, ...]",
                              .gives = "[B, ...]",
                              .attributes = {{.name = "token",
                                              .kind = AttributeKind::kInteger,
                                              .initial = "0",
                                              .doc = "Which, from 0.",
                                              .min = 0,
                                              .max = 1 << 30}},
                              .emit = EmitSelect};

}  // namespace engine::model

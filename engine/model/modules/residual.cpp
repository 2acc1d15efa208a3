#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitResidual(StepContext& step) {
  graph::ValueId sum = step.input(0);
  for (std::size_t i = 1; i < step.inputs().size(); ++i) {
    const Shape& stream = step.type(sum).shape;
    const Shape& branch = step.type(step.input(i)).shape;
    if (stream != branch) {
      return step.Error(fmt::format("the stream is {}, and the branch {} that joins it {}", stream.ToString(),
                                    step.graph().value(step.input(i)).name, branch.ToString()));
    }
    const bool last = i + 1 == step.inputs().size();
    step.PinStream(step.input(i));
    ASSIGN_OR_RETURN(sum, step.Emit1(ops::kAdd, last ? step.path() : fmt::format("{}.{}", step.path(), i),
                                     {sum, step.input(i)}));
    step.PinStream(sum);
  }
  return graph::ValueIds{sum};
}

}  // namespace

const ModuleDef kResidualModule{
    .name = "residual",
    .doc =
        "The stream and what branches off it, added: x + a (+ b). On ranks that share weights (tp) the "
        "stream and the "
        "branches' results are kept together: whole, or with their tokens split (sequence_parallel).",
    .reads = "the stream, then one branch or several, all of one shape",
    .gives = "the stream",
    .least_inputs = 2,
    .most_inputs = -1,
    .emit = EmitResidual};

}  // namespace engine::model

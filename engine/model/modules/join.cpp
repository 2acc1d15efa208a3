#include <algorithm>

#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitJoin(StepContext& step) {
  const int rank = step.type(step.input()).shape.rank();
  if (rank < 3) {
    return step.Error(fmt::format("values [B, S, ..., N] are joined, and this is {}",
                                  step.type(step.input()).shape.ToString()));
  }
  std::int64_t heads = 1;
  for (const graph::ValueId part : step.inputs()) {
    if (step.type(part).shape.rank() == rank) heads = std::max(heads, step.type(part).shape[rank - 2]);
  }
  std::int64_t shared = 0;
  for (std::size_t i = 0; i < step.inputs().size(); ++i) {
    const Shape& part = step.type(step.input(i)).shape;
    bool fits = part.rank() == rank;
    for (int dim = 0; fits && dim + 2 < rank; ++dim) fits = part[dim] == step.type(step.input()).shape[dim];
    const bool one = fits && rank > 3 && part[rank - 2] == 1 && heads > 1;
    if (!fits || (!one && part[rank - 2] != heads)) {
      return step.Error(fmt::format("{} cannot stand beside {}", part.ToString(),
                                    step.type(step.input(i == 0 ? 1 : 0)).shape.ToString()),
                        "the same sizes but for the last, and one head where all heads share it");
    }
    if (!one) continue;
    shared |= std::int64_t{1} << i;
    // Every rank's heads need all of it, and what each gives to its gradient is a term of that.
    graph::Value& value = step.graph().value(step.input(i));
    if (value.pin == graph::Pin::kNone) value.pin = graph::Pin::kReplicated;
  }
  graph::Attributes attributes;
  if (shared != 0) attributes.Set("shared", shared);
  return step.Emit(ops::kJoin, step.path(), step.inputs(), std::move(attributes));
}

}  // namespace

const ModuleDef kJoinModule{
    .name = "join",
    .doc =
        "Its inputs side by side along their last dim. One that has a single head is shared by all heads of "
        "the others: the rotated part of keys in multi-head latent attention (DeepSeek-V2, "
        "arXiv:2405.04434).",
    .reads = "values [B, S, H, N], or [B, S, 1, N] of a part that the heads share; or values [B, S, N]",
    .gives = "[B, S, H, the sum of their N]",
    .least_inputs = 2,
    .most_inputs = 63,
    .emit = EmitJoin};

}  // namespace engine::model

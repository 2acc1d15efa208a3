#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> Emit(StepContext& step) {
  const Shape& packed = step.type(step.input()).shape;
  if (packed.rank() != 5 || packed[3] < 3) {
    return step.Error(
        fmt::format("it cuts [B, S, K, J, E] with J = query heads of a group + 2, and this is {}",
                    packed.ToString()),
        "out = [\"K\", \"H/K+2\", \"E\"] of the linear before it");
  }
  graph::Attributes attributes = {{"rotary", std::int64_t{0}}};
  graph::ValueId positions = step.Get("positions").value;
  if (step.Has("rotary")) {
    const Rotary& rotary = step.Get("rotary").rotary;
    attributes = rotary.attributes;
    positions = rotary.positions;
  }
  return step.Emit(ops::kQkvSplit, step.path(), {step.input(), positions}, std::move(attributes));
}

}  // namespace

const ModuleDef kQkvSplitModule{
    .name = "qkv_split",
    .doc =
        "Queries, keys and values out of one product, packed as Megatron-LM packs them: for each of K groups "
        "its J − 2 "
        "query heads, then its key, then its value. With `rotary`, queries and keys are rotated on the way.",
    .reads = "packed [B, S, K, J, E]",
    .gives = "q [B, S, K·(J−2), E], k and v [B, S, K, E]",
    .results = 3,
    .attributes =
        {{.name = "rotary",
          .kind = AttributeKind::kRotary,
          .doc =
              "The table of [model.rotary] by which q and k are rotated; none, or left out: they are not."},
         {.name = "positions",
          .kind = AttributeKind::kValue,
          .initial = "positions",
          .doc = "Positions of the tokens, i32 [B, S]."}},
    .emit = Emit};

}  // namespace engine::model

#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> EmitQkvSplit(StepContext& step) {
  const Shape& packed = step.type(step.input()).shape;
  if (packed.rank() != 5 || packed[3] < 3) {
    return step.Error(
        fmt::format("it cuts [B, S, K, J, E] with J = query heads of a group + 2, and this is {}",
                    packed.ToString()),
        "out = [\"K\", \"H/K+2\", \"E\"] of the linear before it");
  }
  graph::Attributes attributes = {{"rotary", std::int64_t{0}}};
  graph::ValueIds inputs = {step.input()};
  if (step.Has("rotary")) {
    const Rotary& rotary = step.Get("rotary").rotary;
    attributes = rotary.attributes;
    inputs.push_back(rotary.positions);
  } else if (step.Has("positions")) {  // for attention on packed tensors, which takes them from here
    inputs.push_back(step.OfSequence(step.Get("positions").value));
  }
  return step.Emit(ops::kQkvSplit, step.path(), std::move(inputs), std::move(attributes));
}

absl::StatusOr<graph::ValueIds> EmitRotary(StepContext& step) {
  const Rotary* rotary = step.Has("table") ? &step.Get("table").rotary : nullptr;
  graph::ValueIds results;
  for (std::size_t i = 0; i < step.inputs().size(); ++i) {
    if (rotary == nullptr) {  // layers without positions
      results.push_back(step.input(i));
      continue;
    }
    if (step.type(step.input(i)).shape.rank() != 4)
      return step.Error(fmt::format("heads [B, S, N, E] are rotated, and this is {}",
                                    step.type(step.input(i)).shape.ToString()));
    graph::Attributes attributes;
    for (const auto& [name, item] : rotary->attributes.items()) {
      if (name != "rotary") attributes.Set(name, item);
    }
    const std::string name = step.inputs().size() == 1 ? step.path() : fmt::format("{}.{}", step.path(), i);
    ASSIGN_OR_RETURN(const graph::ValueId y,
                     step.Emit1(ops::kRotate, name, {step.input(i), rotary->positions}, attributes));
    results.push_back(y);
  }
  return results;
}

}  // namespace

const ModuleDef kRotaryModule{
    .name = "rotary",
    .doc =
        "Rotates heads to their tokens' positions (Su et al., arXiv:2104.09864), each input by the same "
        "table.",
    .reads = "heads [B, S, N, E], one value or several",
    .gives = "as many values, shaped as they were",
    .most_inputs = -1,
    .results = -1,
    .attributes = {{.name = "table",
                    .kind = AttributeKind::kRotary,
                    .doc = "A table of [model.rotary]; \"none\": nothing is rotated.",
                    .required = true}},
    .emit = EmitRotary};

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
          .doc = "Positions of the tokens, i32 [B, S]; where nothing is rotated there need be none.",
          .may_lack = true}},
    .emit = EmitQkvSplit};

}  // namespace engine::model

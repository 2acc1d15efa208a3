#include "engine/base/status.h"
#include "engine/model/build.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

// An embedding of labels is one of the tokens that are to come, whether or not they count in the loss.
graph::ValueId TokensOf(graph::Graph& graph, graph::ValueId ids) {
  const graph::Value& read = graph.value(ids);
  if (read.kind != graph::ValueKind::kInput || !IsLabels(read.name)) return ids;
  const std::string name = fmt::format("{}{}", kTokensOf, *TokenOffset(read.name));
  for (std::size_t v = 0; v < graph.values().size(); ++v) {
    const graph::Value& value = graph.values()[v];
    if (value.kind == graph::ValueKind::kInput && value.name == name) return static_cast<graph::ValueId>(v);
  }
  return graph.AddInput(name, graph::TensorType(read.type));
}

absl::StatusOr<graph::ValueIds> EmitEmbedding(StepContext& step) {
  const graph::ValueId ids = TokensOf(step.graph(), step.input());
  if (step.type(ids).dtype != DType::kI32) {
    return step.Error(fmt::format("an embedding looks up i32 numbers, and {} are {}",
                                  step.graph().value(ids).name, Name(step.type(ids).dtype)));
  }
  const bool by_position = step.graph().value(ids).name == kPositions;
  graph::ValueId table = graph::kNoValue;
  if (step.Has("weight")) {
    table = step.Get("weight").value;
  } else {
    if (!step.Has("rows") || !step.Has("width"))
      return step.Error("rows and width are needed, or the weight of another step",
                        "rows = \"V\", width = \"D\"");
    Sizes sizes = step.Get("rows").sizes;
    if (by_position) sizes.dims = {graph::Dim::kOther};  // each rank has all positions
    const Sizes& width = step.Get("width").sizes;
    if (sizes.shape.rank() != 1 || width.shape.rank() != 1)
      return step.ErrorIn("rows", "rows and width are one dim each");
    sizes.Append(width.shape[0], width.logical[0], width.dims[0]);
    ASSIGN_OR_RETURN(table, step.Parameter("", graph::Role::kTable, sizes, step.Get("init").initializer));
  }
  const std::int64_t rows = step.type(table).shape[0];
  const std::int64_t positions = rows - step.Int("offset");
  if (by_position && positions < step.options().sequence) {
    return step.ErrorIn(
        "rows",
        fmt::format("{} positions are fewer than the {} of a sequence", positions, step.options().sequence),
        fmt::format("rows at least {}; or data.sequence_length at most {}",
                    step.options().sequence + rows - positions, positions));
  }
  graph::Attributes attributes;
  const std::int64_t offset = step.Int("offset");
  if (offset != 0) attributes.Set("offset", offset);
  if (by_position) attributes.Set("replicate", std::int64_t{1});
  ASSIGN_OR_RETURN(const graph::ValueId y,
                   step.Emit1(ops::kEmbedding, step.path() + ".lookup", {ids, table}, attributes));
  return graph::ValueIds{y};
}

}  // namespace

const ModuleDef kEmbeddingModule{
    .name = "embedding",
    .doc = "y[…, :] = table[ids[…], :], a row of the table for each number.",
    .reads = "ids, i32 of any shape",
    .parameters = "NAME [rows, width], called as the step itself; role table",
    .gives = "[ids…, width]",
    .attributes =
        {{.name = "rows", .kind = AttributeKind::kShape, .doc = "How many numbers there are: \"V\"."},
         {.name = "width", .kind = AttributeKind::kShape, .doc = "Length of a row: \"D\"."},
         {.name = "weight",
          .kind = AttributeKind::kParameter,
          .doc = "The table of another step, in place of one of its own."},
         {.name = "offset",
          .kind = AttributeKind::kInteger,
          .initial = "0",
          .doc = "Added to the numbers: OPT's position p has row p + 2.",
          .min = 0,
          .max = 1 << 20},
         {.name = "init", .kind = AttributeKind::kInitializer, .initial = "normal", .doc = "Of the table."}},
    .emit = EmitEmbedding};

}  // namespace engine::model

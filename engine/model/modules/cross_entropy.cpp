#include <array>

#include "engine/base/status.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

absl::StatusOr<graph::ValueIds> Emit(StepContext& step) {
  const graph::ValueId logits = step.input();
  const graph::ValueId labels = step.Get("labels").value;
  const Shape& of = step.type(logits).shape;
  const Shape& expected = step.type(labels).shape;
  const bool fits = of.rank() == expected.rank() + 1 && of.elements(0, of.rank() - 1) == expected.elements();
  if (!fits || step.type(labels).dtype != DType::kI32) {
    std::string needed = of.ToString();
    needed = needed.substr(0, needed.rfind(',')) + "]";
    return step.ErrorIn("labels", fmt::format("logits {} need labels i32 {}, and {} are {} {}", of.ToString(),
                                              needed, step.graph().value(labels).name,
                                              Name(step.type(labels).dtype), expected.ToString()));
  }
  graph::Graph& graph = step.graph();
  const graph::Attributes attributes = {{"classes", step.LogicalClasses(logits)}};
  ASSIGN_OR_RETURN(
      const graph::ValueIds statistics,
      step.Emit(ops::kCrossEntropy, step.path() + ".cross_entropy", {logits, labels}, attributes));
  for (const graph::ValueId statistic : statistics) graph.value(statistic).pin = graph::Pin::kReplicated;
  if (graph.logits() == graph::kNoValue) graph.set_logits(logits);
  const std::int64_t samples = step.options().batch;
  const double count =
      step.options().global_samples * static_cast<double>(step.type(labels).shape.elements() / samples);
  const double weight = step.Number("weight");
  const graph::ValueId loss = graph.AddMetric(step.path(), count, weight);
  graph.Emit(ops::kLossSum, step.path() + ".sum", {statistics[0], statistics[1], labels},
             {{"scale", weight / count}}, std::array<graph::ValueId, 1>{loss});
  const graph::ValueIds nothing(0, graph::kNoValue);
  return nothing;
}

}  // namespace

const ModuleDef kCrossEntropyModule{
    .name = "cross_entropy",
    .doc =
        "A loss: the mean over a global batch's labels of log Σ_v exp(z_v) − z_label. Labels below 0 are not "
        "counted in "
        "the sum. It is logged under the step's name.",
    .reads = "logits [..., V]",
    .gives = "nothing",
    .results = 0,
    .attributes = {{.name = "labels",
                    .kind = AttributeKind::kValue,
                    .initial = "labels",
                    .doc = "The right classes, i32 [...]."},
                   {.name = "weight",
                    .kind = AttributeKind::kNumber,
                    .initial = "1",
                    .doc = "Its factor in the objective, the sum of all losses; 0: it is only logged.",
                    .min = 0,
                    .max = 1e6}},
    .emit = Emit};

}  // namespace engine::model

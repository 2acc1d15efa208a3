#include <array>
#include <string_view>

#include "engine/base/status.h"
#include "engine/model/check.h"
#include "engine/model/modules/modules.h"
#include "engine/ops/ops.h"

namespace engine::model {
namespace {

// Those that are not 0.
graph::Attributes TermsOf(const StepContext& step) {
  graph::Attributes terms;
  for (const std::string_view name : {"smoothing", "z_loss"}) {
    if (step.Number(name) > 0) terms.Set(name, step.Number(name));
  }
  return terms;
}

// How well each of the model's next tokens was predicted, whatever terms its loss has besides. `statistics` are those of a
// loss without any.
void EmitScores(StepContext& step, graph::ValueId logits, graph::ValueId labels, graph::ValueIds statistics,
                bool has_terms) {
  graph::Graph& graph = step.graph();
  const auto emit = [&](const graph::OpDef& op, const char* name, graph::ValueIds inputs) {
    graph::ValueIds outputs =
        graph.Emit(op, step.path() + name, std::move(inputs), {{"classes", step.LogicalClasses(logits)}});
    for (const graph::ValueId output : outputs) graph.value(output).pin = graph::Pin::kReplicated;
    return outputs;
  };
  if (has_terms) statistics = emit(ops::kCrossEntropy, ".plain", {logits, labels});
  const graph::ValueIds scores =
      emit(ops::kTokenScore, ".scores", {logits, labels, statistics[0], statistics[1]});
  graph.set_scores({.log_probability = scores[0], .rank = scores[1]});
}

absl::StatusOr<graph::ValueIds> EmitCrossEntropy(StepContext& step) {
  const graph::ValueId logits = step.input();
  const graph::ValueId labels = step.Get("labels").value;
  const Shape of = step.type(logits).shape;  // copies: ops that are emitted move the values of the graph
  const Shape expected = step.type(labels).shape;
  const bool fits = of.rank() == expected.rank() + 1 && of.elements(0, of.rank() - 1) == expected.elements();
  if (!fits || step.type(labels).dtype != DType::kI32) {
    std::string needed = of.ToString();
    needed = needed.substr(0, needed.rfind(',')) + "]";
    return step.ErrorIn("labels", fmt::format("logits {} need labels i32 {}, and {} are {} {}", of.ToString(),
                                              needed, step.graph().value(labels).name,
                                              Name(step.type(labels).dtype), expected.ToString()));
  }
  const std::int64_t classes = step.LogicalClasses(logits);
  const std::int64_t ids = VocabularyOf(step.graph());
  if (step.graph().value(labels).name.starts_with(kLabels) && classes < ids) {  // labels_2 … too
    return step.Error(fmt::format("labels are ids of a vocabulary of {}, and {} logits tell {} classes apart",
                                  ids, of.ToString(), classes),
                      "a step before this one that makes as many as the table of tokens has rows, as out = "
                      "[\"V\"]");
  }
  const std::int64_t labels_of_sample = expected.elements() / step.options().batch;
  graph::Graph& graph = step.graph();
  const graph::Attributes terms = TermsOf(step);
  graph::Attributes attributes = {{"classes", classes}};
  for (const auto& [name, item] : terms.items()) attributes.Set(name, item);
  ASSIGN_OR_RETURN(
      const graph::ValueIds statistics,
      step.Emit(ops::kCrossEntropy, step.path() + ".cross_entropy", {logits, labels}, attributes));
  for (const graph::ValueId statistic : statistics) graph.value(statistic).pin = graph::Pin::kReplicated;
  if (graph.logits() == graph::kNoValue) graph.set_logits(logits);
  const bool next_tokens = graph.value(labels).name == kLabels && expected.rank() == 2;
  if (step.options().scores && !graph.scores() && next_tokens)
    EmitScores(step, logits, labels, statistics, !terms.items().empty());
  const double count = step.options().global_samples * static_cast<double>(labels_of_sample);
  const double weight = step.Number("weight");
  const bool has_terms = !terms.items().empty();
  const graph::ValueId loss = graph.AddMetric(step.path(), count, weight, /*of_labels=*/true, has_terms);
  graph::Attributes sum = {{"scale", weight / count}};
  for (const auto& [name, item] : terms.items()) sum.Set(name, item);
  graph.Emit(ops::kLossSum, step.path() + ".sum", {statistics[0], statistics[1], labels}, sum,
             std::array<graph::ValueId, 1>{loss});
  const graph::ValueIds nothing(0, graph::kNoValue);
  return nothing;
}

}  // namespace

const ModuleDef kCrossEntropyModule{
    .name = "cross_entropy",
    .doc =
        "A loss: the mean over a global batch's labels of log Σ_v exp(z_v) − z_label. Labels below 0 are not "
        "counted in "
        "the sum; the mean is over the labels that the data says count. It is logged under the step's name.",
    .reads = "logits [..., V]",
    .gives = "nothing",
    .results = 0,
    .attributes = {{.name = "labels",
                    .kind = AttributeKind::kValue,
                    .initial = "labels",
                    .doc = "The right classes, i32 [...]."},
                   {.name = "smoothing",
                    .kind = AttributeKind::kNumber,
                    .initial = "0",
                    .doc = "Share of each label that is spread evenly over all classes (Szegedy et al., "
                           "arXiv:1512.00567).",
                    .min = 0,
                    .max = 1,
                    .open_end = true},
                   {.name = "z_loss",
                    .kind = AttributeKind::kNumber,
                    .initial = "0",
                    .doc = "ζ of + ζ·(log Σ_v exp(z_v))², which keeps logits small (PaLM, arXiv:2204.02311).",
                    .min = 0,
                    .max = 1},
                   {.name = "weight",
                    .kind = AttributeKind::kNumber,
                    .initial = "1",
                    .doc = "Its factor in the objective, the sum of all losses; 0: it is only logged.",
                    .min = 0,
                    .max = 1e6}},
    .emit = EmitCrossEntropy};

}  // namespace engine::model

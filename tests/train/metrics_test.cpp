// A model with several metrics: a decoder with a second head, whose loss has another weight, and one that is only watched.
#include <array>
#include <cmath>

#include "engine/compile/compile.h"
#include "engine/verify/verify.h"
#include "tests/train/testing.h"

namespace engine::train::testing {
namespace {

using graph::ValueId;
using graph::ValueIds;

constexpr double kSecondWeight = 0.25;

// Adds to the decoder's last unit a head of its own table that predicts the positions (weight kSecondWeight), and the
// first loss once more, watched.
void AddMetrics(double tokens, DType dtype, graph::Graph* graph) {
  const auto find = [&](std::string_view name) {
    for (size_t v = 0; v < graph->values().size(); ++v) {
      if (graph->values()[v].name == name) return static_cast<ValueId>(v);
    }
    FAIL("no value " << name);
    return graph::kNoValue;
  };
  const ValueId normed = find("final_norm");
  const ValueId positions = find("positions");
  const std::int64_t classes = 32;  // positions are fewer
  const std::int64_t width = graph->value(normed).type.shape[2];
  const ValueId table = graph->AddParameter(
      "second.weight",
      {.shape = {classes, width}, .dtype = dtype, .dims = {graph::Dim::kVocab, graph::Dim::kFeature}},
      {classes, width}, {graph::Initializer::Kind::kNormal, 0.1}, graph::Role::kMatrix);
  const ValueId logits =
      graph->Emit1(ops::kLinear, "second", {normed, table}, {{"in_dims", std::int64_t{1}}});
  const auto statistics = [&](const std::string& name, ValueId of, ValueId labels, std::int64_t count) {
    const ValueIds made = graph->Emit(ops::kCrossEntropy, name, {of, labels}, {{"classes", count}});
    for (ValueId statistic : made) graph->value(statistic).pin = graph::Pin::kReplicated;
    return made;
  };
  const auto add = [&](const std::string& name, double weight, const ValueIds& of, ValueId labels) {
    const ValueId sum = graph->AddMetric(name, tokens, weight);
    graph->Emit(ops::kLossSum, name + ".sum", {of[0], of[1], labels}, {{"scale", weight / tokens}},
                std::array<ValueId, 1>{sum});
  };
  add("second", kSecondWeight, statistics("second.cross_entropy", logits, positions, classes), positions);
  const ValueId head = find("head");
  add("watched", 0, statistics("watched.cross_entropy", head, positions, classes), positions);
}

absl::StatusOr<plan::Plan> PlanOf(const recipe::Recipe& recipe, const state::Device& device) {
  const compile::CompileOptions options{.profile = device.profile};
  ASSIGN_OR_RETURN(const compile::Policy policy, compile::ResolvePolicy(recipe, options));
  const double tokens = static_cast<double>(policy.global_batch * policy.sequence);
  const auto build = [&] {
    graph::Graph graph =
        model::BuildModel(recipe, {.batch = policy.microbatch_samples,
                                   .sequence = policy.sequence,
                                   .vocab_multiple = policy.vocab_rows,
                                   .dtype = DType::kF32,
                                   .dropout = false,
                                   .global_samples = static_cast<double>(policy.global_batch),
                                   .init_std = recipe.model.init_std});
    AddMetrics(tokens, DType::kF32, &graph);
    return graph;
  };
  ASSIGN_OR_RETURN(compile::Compiled compiled, compile::Compile(policy, build(), build(), options));
  RETURN_IF_ERROR(verify::Verify(compiled.plan, {}));
  return std::move(compiled.plan);
}

Trained Run(const std::string& sets) {
  const recipe::Recipe recipe = MakeRecipe(kLlamaLike, SetsOf(sets));
  const state::Device device = CpuDevice();
  return TrainFor(recipe, PlanOf(recipe, device), 3, device);
}

}  // namespace

TEST_CASE("metrics: several losses of several weights are the same in every layout") {
  const Trained one = Run("micro_batch=2");
  REQUIRE(one.metrics[0].size() == 3);
  for (size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(one.losses[i] ==
          doctest::Approx(one.metrics[i][0] + kSecondWeight * one.metrics[i][1]).epsilon(1e-12));
    CHECK(one.metrics[i][2] > 0);
  }
  // The second head is trained: it knows better after two updates.
  CHECK(one.metrics[2][1] < one.metrics[0][1]);
  for (const char* sets :
       {"dp=2 micro_batch=2", "tp=2 micro_batch=2", "tp=2 sequence_parallel=true micro_batch=2",
        "cp=2 micro_batch=2", "pp=2 micro_batch=2", "pp=4 dp=2 zero_stage=1 micro_batch=2",
        "dp=2 zero_stage=3 overlap=on micro_batch=2"}) {
    CAPTURE(std::string(sets));
    const Trained other = Run(sets);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(other.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
      for (size_t m = 0; m < 3; ++m)
        CHECK(other.metrics[i][m] == doctest::Approx(one.metrics[i][m]).epsilon(1e-5));
    }
    CHECK(other.evaluations[0] == doctest::Approx(one.evaluations[0]).epsilon(1e-5));
    for (size_t p = 0; p < one.names.size(); ++p) {
      CAPTURE(one.names[p]);
      double largest = 0;
      for (size_t k = 0; k < one.weights[p].size(); ++k)
        largest = std::max(largest,
                           std::abs(static_cast<double>(one.gradients[0][p][k]) - other.gradients[0][p][k]));
      CHECK(largest < 1e-6);
    }
  }
}

}  // namespace engine::train::testing

#include "tests/train/oracle_engine.h"

#include <algorithm>
#include <cmath>

#include "engine/model/load.h"

namespace engine::train::testing {

recipe::Recipe TextOf(const std::string& name) {
  const recipe::LoadResult loaded =
      model::Load(std::string(ENGINE_SOURCE_DIR "/tests/train/texts/") + name + ".toml");
  std::string errors;
  for (const Diagnostic& diagnostic : loaded.diagnostics) errors += Format(diagnostic);
  REQUIRE_MESSAGE(loaded.ok(), errors);
  return loaded.recipe;
}

void UploadParameters(const plan::Plan& plan, const OracleGroup& group, executor::RankExecutor& rank) {
  for (const executor::LocalTensor& tensor : rank.Parameters()) {
    const plan::PlanParameter& parameter = plan.parameters[static_cast<size_t>(tensor.parameter)];
    INFO(parameter.name);
    const std::vector<float> values = group.Floats("parameters/" + parameter.name);
    REQUIRE(static_cast<std::int64_t>(values.size()) == parameter.logical_shape.elements());
    const absl::Status status =
        rank.backend().Upload(static_cast<std::byte*>(tensor.view.data), values.data(),
                              static_cast<std::int64_t>(values.size() * sizeof(float)));
    REQUIRE(status.ok());
  }
}

OracleEngine::OracleEngine(const recipe::Recipe& recipe, const OracleGroup& group)
    : learning_rate_(recipe.optimizer.learning_rate), device_(CpuDevice()) {
  absl::StatusOr<plan::Plan> plan =
      driver::CompileRecipe(recipe, {.profile = device_.profile, .keep_logits = true});
  REQUIRE_MESSAGE(plan.ok(), Message(plan.status()));
  plan_ = *std::move(plan);
  auto ranks = state::Ranks::Create(plan_, device_, 0);
  REQUIRE_MESSAGE(ranks.ok(), Message(ranks.status()));
  ranks_ = *std::move(ranks);
  UploadParameters(plan_, group, rank());
  feed_ = [tokens = group.Integers("tokens"), labels = group.Integers("labels")](
              const std::string& input, std::int64_t, const backend::TensorView& host) -> absl::Status {
    for (std::int64_t i = 0; i < host.shape.elements(); ++i) {
      const auto at = static_cast<size_t>(i);
      host.as<std::int32_t>()[i] = input == model::kPositions ? static_cast<std::int32_t>(i % host.shape[1])
                                   : input == model::kLabels  ? labels[at]
                                                              : tokens[at];
    }
    return absl::OkStatus();
  };
}

double OracleEngine::Metric(const std::string& name) {
  const absl::StatusOr<executor::IterationResult> result = rank().Evaluate(feed_);
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  return MetricOf(*result, name);
}

double OracleEngine::MetricOf(const executor::IterationResult& result, const std::string& name) const {
  for (size_t m = 0; m < plan_.metrics.size(); ++m) {
    if (plan_.metrics[m].name == name)
      return result.sums[static_cast<size_t>(plan_.metrics[m].first)] / plan_.metrics[m].count;
  }
  FAIL("no metric ", name);
  return 0;
}

executor::IterationResult OracleEngine::Train(int iteration) {
  absl::StatusOr<executor::IterationResult> result =
      rank().Train(iteration, iteration + 1, learning_rate_, feed_);
  REQUIRE_MESSAGE(result.ok(), Message(result.status()));
  return *result;
}

std::vector<float> OracleEngine::Logits() {
  std::vector<float> logits;
  const float* row = rank().Logits().as<float>();
  for (std::int64_t token = 0; token < static_cast<std::int64_t>(tokens());
       ++token, row += plan_.vocab_rows) {
    logits.insert(logits.end(), row, row + plan_.vocab);
  }
  return logits;
}

std::vector<float> OracleEngine::Gradient(std::int32_t parameter) {
  std::vector<float> out;
  REQUIRE(state::GatherGradient(plan_, *ranks_, parameter, &out).ok());
  return out;
}

std::vector<float> OracleEngine::Weight(std::int32_t parameter) {
  std::vector<float> out;
  REQUIRE(state::GatherParameter(plan_, *ranks_, parameter, &out).ok());
  return out;
}

double OracleBound::Of(double float32_max_error, double scale) const {
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  return 4 * float32_max_error + std::sqrt(longest_product * products) * kEpsilon * scale;
}

double LargestOf(const std::vector<float>& values) {
  double largest = 0;
  for (float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

double ErrorOf(const OracleGroup& group, const std::string& name) {
  return group.Number(name, "float32_max_error");
}

void CheckClose(const std::vector<float>& expected, const std::vector<float>& actual, double bound) {
  REQUIRE(expected.size() == actual.size());
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    // A NaN compares false everywhere, so it is counted as endless.
    const double difference = std::abs(static_cast<double>(expected[i]) - actual[i]);
    largest = difference <= largest ? largest : std::isnan(difference) ? HUGE_VAL : difference;
  }
  CHECK(largest <= bound);
}

void CheckForwardAndBackward(const OracleGroup& group, const OracleBound& bound, OracleEngine* engine) {
  const double loss = group.Doubles("loss")[0];
  CHECK(std::abs(engine->Evaluate() - loss) <= bound.Of(ErrorOf(group, "loss"), loss));
  const std::vector<float> logits = group.Floats("logits");
  {
    INFO("logits");
    CheckClose(logits, engine->Logits(), bound.Of(ErrorOf(group, "logits"), LargestOf(logits)));
  }
  engine->Train(0);
  REQUIRE(static_cast<size_t>(engine->parameters()) == group.NamesIn("gradients").size());
  for (std::int32_t p = 0; p < engine->parameters(); ++p) {
    const std::string name = "gradients/" + engine->Name(p);
    INFO(name);
    const std::vector<float> expected = group.Floats(name);
    CheckClose(expected, engine->Gradient(p), bound.Of(ErrorOf(group, name), LargestOf(expected)));
  }
}

}  // namespace engine::train::testing

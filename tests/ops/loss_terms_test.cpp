// Label smoothing and z-loss against the oracle of tests/oracles/loss_terms.py, as autodiff chains the ops: the logits are
// rows of a table, looked up each once, so that the table's gradient is theirs.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/graph/autodiff.h"
#include "engine/ops/ops.h"
#include "tests/ops/interpreter.h"

namespace engine::ops_test {
namespace {

nlohmann::json Oracle() {
  std::ifstream file(ENGINE_SOURCE_DIR "/tests/oracles/loss_terms.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

graph::Attributes With(graph::Attributes attributes, const nlohmann::json& of) {
  for (const char* term : {"smoothing", "z_loss"}) {
    const double value = of[term];
    if (value > 0) attributes.Set(term, value);
  }
  return attributes;
}

void CheckCase(const nlohmann::json& oracle, const nlohmann::json& of) {
  CAPTURE(of.dump());
  const auto tokens = static_cast<std::int64_t>(oracle["labels"].size());
  const auto columns = static_cast<std::int64_t>(oracle["logits"][0].size());
  graph::Graph graph;
  const graph::ValueId ids = graph.AddInput("ids", {.shape = {1, tokens}, .dtype = DType::kI32});
  const graph::ValueId labels = graph.AddInput("labels", {.shape = {1, tokens}, .dtype = DType::kI32});
  const Shape shape = {tokens, columns};
  const graph::ValueId table =
      graph.AddParameter("logits", {.shape = shape, .dtype = DType::kF64}, shape, {}, graph::Role::kTable);
  const graph::ValueId logits = graph.Emit1(ops::kEmbedding, "lookup", {ids, table});
  const graph::ValueIds statistics = graph.Emit(ops::kCrossEntropy, "cross_entropy", {logits, labels},
                                                With({{"classes", std::int64_t{oracle["classes"]}}}, of));
  const graph::ValueId loss = graph.AddMetric("loss", 1, 1);
  graph.Emit(ops::kLossSum, "loss.sum", {statistics[0], statistics[1], labels},
             With({{"scale", double{oracle["scale"]}}}, of), std::array<graph::ValueId, 1>{loss});
  REQUIRE(graph::Differentiate(&graph, ops::kAdd).ok());

  ValueTensors values;
  values[table] = Tensor({shape, DType::kF64});
  values[ids] = Tensor({{1, tokens}, DType::kI32});
  values[labels] = Tensor({{1, tokens}, DType::kI32});
  for (std::int64_t t = 0; t < tokens; ++t) {
    values[ids].Set(t, static_cast<double>(t));
    values[labels].Set(t, double{oracle["labels"][static_cast<size_t>(t)]});
    for (std::int64_t c = 0; c < columns; ++c) {
      values[table].Set(t * columns + c,
                        double{oracle["logits"][static_cast<size_t>(t)][static_cast<size_t>(c)]});
    }
  }
  RunGraph(graph, &values);
  // A dozen roundings of numbers below 20.
  CHECK(values.at(loss).Get(0) == doctest::Approx(double{of["loss"]}).epsilon(1e-14));
  const graph::ValueId d_table = graph.nodes().back().outputs[0];
  double worst = 0;
  for (std::int64_t i = 0; i < tokens * columns; ++i) {
    const double wanted = of["d_logits"][static_cast<size_t>(i / columns)][static_cast<size_t>(i % columns)];
    worst = std::max(worst, std::fabs(values.at(d_table).Get(i) - wanted));
  }
  CHECK(worst <= 1e-15);
}

}  // namespace

TEST_CASE("loss: label smoothing and z-loss agree with the oracle") {
  const nlohmann::json oracle = Oracle();
  REQUIRE(oracle["cases"].size() == 4);
  for (const nlohmann::json& of : oracle["cases"]) CheckCase(oracle, of);
}

TEST_CASE("loss: terms that are no terms are refused") {
  const std::vector<graph::TensorType> inputs = {{{2, 3, 8}}, {{2, 3}, DType::kI32}};
  const auto refused = [&](const char* term, double value) {
    return Message(ops::kCrossEntropy.infer(inputs, {{"classes", std::int64_t{8}}, {term, value}}).status());
  };
  CHECK(refused("smoothing", 1.0) == "cross_entropy: label smoothing is 1, must be from 0 to below 1");
  CHECK(refused("smoothing", -0.5) == "cross_entropy: label smoothing is -0.5, must be from 0 to below 1");
  CHECK(refused("z_loss", -1.0) == "cross_entropy: the factor of the z-loss is -1, must not be negative");
}

}  // namespace engine::ops_test

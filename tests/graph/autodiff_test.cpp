#include "engine/graph/autodiff.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace engine::graph {
namespace {

// Two layers of x += gelu(x · w), then a head and the loss; x also reaches the loss past each product.
struct Tiny {
  Graph graph;
  std::vector<ValueId> weights;

  Tiny() {
    const ValueId ids = graph.AddInput("tokens", {.shape = {2, 3}, .dtype = DType::kI32});
    const ValueId labels = graph.AddInput("labels", {.shape = {2, 3}, .dtype = DType::kI32});
    graph.BeginUnit("embedding", Unit::Kind::kEntry);
    const ValueId table = Weight("table", {5, 4});
    ValueId x = graph.Emit1(ops::kEmbedding, "lookup", {ids, table});
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      graph.BeginUnit(name, Unit::Kind::kBlock);
      const ValueId w = Weight(name + ".w", {4, 4});
      const ValueId wide =
          graph.Emit1(ops::kLinear, name + ".linear", {x, w}, {{"in_dims", std::int64_t{1}}});
      const ValueId active = graph.Emit1(ops::kGelu, name + ".gelu", {wide}, {{"tanh", std::int64_t{0}}});
      x = graph.Emit1(ops::kAdd, name + ".residual", {x, active});
    }
    graph.BeginUnit("head", Unit::Kind::kExit);
    const ValueId logits = graph.Emit1(ops::kLinear, "head", {x, table}, {{"in_dims", std::int64_t{1}}});
    const ValueIds statistics =
        graph.Emit(ops::kCrossEntropy, "cross_entropy", {logits, labels}, {{"classes", std::int64_t{5}}});
    const ValueId loss = graph.AddMetric("loss", 1, 1);
    graph.Emit(ops::kLossSum, "loss.sum", {statistics[0], statistics[1], labels}, {{"scale", 1.0}},
               std::array<ValueId, 1>{loss});
  }

  ValueId Weight(const std::string& name, const Shape& shape) {
    weights.push_back(
        graph.AddParameter(name, {.shape = shape, .dtype = DType::kF32}, shape, {}, graph::Role::kMatrix));
    return weights.back();
  }
};

std::int64_t Count(const Graph& graph, Phase phase, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                       [&](const Node& node) { return node.phase == phase && node.op->name == op; });
}

// Forward activations that backward nodes read: what must be saved.
std::set<std::string> Saved(const Graph& graph) {
  std::set<std::string> produced;
  std::set<std::string> saved;
  for (const Node& node : graph.nodes()) {
    if (node.phase == Phase::kForward) {
      for (ValueId output : node.outputs) produced.insert(graph.value(output).name);
      continue;
    }
    for (ValueId input : node.inputs) {
      if (produced.contains(graph.value(input).name)) saved.insert(graph.value(input).name);
    }
  }
  return saved;
}

}  // namespace

TEST_CASE("autodiff: one accumulator a parameter, one contribution a read, sums where paths meet") {
  Tiny tiny;
  REQUIRE(tiny.graph.Verify().ok());
  REQUIRE(Differentiate(&tiny.graph, ops::kAdd).ok());
  const absl::Status status = tiny.graph.Verify();
  REQUIRE_MESSAGE(status.ok(), Message(status));
  CHECK(Count(tiny.graph, Phase::kBackward, "linear_wgrad") == 3);    // two layers and the head
  CHECK(Count(tiny.graph, Phase::kBackward, "embedding_grad") == 1);  // the other read of the tied table
  CHECK(Count(tiny.graph, Phase::kBackward, "add") == 2);             // each x has a residual and a product
  for (ValueId weight : tiny.weights) {
    const auto& values = tiny.graph.values();
    CHECK(std::count_if(values.begin(), values.end(),
                        [&](const Value& v) { return v.gradient_of == weight; }) == 1);
  }
}

namespace {

// The accumulators of gradients, by name.
std::set<std::string> Gradients(const Graph& graph) {
  std::set<std::string> names;
  for (const Value& value : graph.values()) {
    if (value.gradient_of != kNoValue) names.insert(value.name);
  }
  return names;
}

std::int64_t Backward(const Graph& graph) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(),
                       [](const Node& node) { return node.phase == Phase::kBackward; });
}

}  // namespace

TEST_CASE("autodiff: below the first trained parameter there is no backward pass") {
  Tiny tiny;
  tiny.graph.SetTraining(tiny.weights[0], {.frozen = true});  // the tied table, and
  tiny.graph.SetTraining(tiny.weights[1], {.frozen = true});  // layer 0
  REQUIRE(Differentiate(&tiny.graph, ops::kAdd).ok());
  const absl::Status status = tiny.graph.Verify();
  REQUIRE_MESSAGE(status.ok(), Message(status));
  CHECK((Gradients(tiny.graph) == std::set<std::string>{"d_layers.1.w"}));
  // loss_weight, cross_entropy_grad, the head's linear_dgrad, gelu_grad and linear_wgrad of layer 1: neither of the table's
  // two gradients, and no gradient of what layer 1 reads.
  CHECK(Count(tiny.graph, Phase::kBackward, "linear_dgrad") == 1);
  CHECK(Count(tiny.graph, Phase::kBackward, "gelu_grad") == 1);
  CHECK(Count(tiny.graph, Phase::kBackward, "linear_wgrad") == 1);
  CHECK(Backward(tiny.graph) == 5);
  for (const Node& node : tiny.graph.nodes()) CHECK((node.phase == Phase::kForward || node.unit != 1));
}

TEST_CASE("autodiff: a gradient passes through a frozen layer to what is trained below it") {
  Tiny tiny;
  tiny.graph.SetTraining(tiny.weights[2], {.frozen = true});  // layer 1
  REQUIRE(Differentiate(&tiny.graph, ops::kAdd).ok());
  REQUIRE(tiny.graph.Verify().ok());
  CHECK((Gradients(tiny.graph) == std::set<std::string>{"d_layers.0.w", "d_table"}));
  CHECK(Count(tiny.graph, Phase::kBackward, "linear_dgrad") == 3);
  CHECK(Count(tiny.graph, Phase::kBackward, "linear_wgrad") == 2);  // the head's and layer 0's
  CHECK(Count(tiny.graph, Phase::kBackward, "embedding_grad") == 1);
  // Repeated nodes are found by their producers, which are those that pruning left.
  Recompute(&tiny.graph, [](const Node& node) { return node.unit == 1 || node.unit == 2; });
  CHECK(tiny.graph.Verify().ok());
  CHECK(Count(tiny.graph, Phase::kBackward, "linear") == 2);
}

TEST_CASE("autodiff: a gain that is frozen leaves its norm one gradient, and all frozen leaves nothing") {
  Graph graph;
  const ValueId ids = graph.AddInput("ids", {.shape = {2, 3}, .dtype = DType::kI32});
  const ValueId table =
      graph.AddParameter("table", {.shape = {5, 4}, .dtype = DType::kF32}, {5, 4}, {}, Role::kTable);
  const ValueId gain = graph.AddParameter("gain", {.shape = {4}, .dtype = DType::kF32}, {4}, {}, Role::kGain);
  const ValueId labels = graph.AddInput("labels", {.shape = {2, 3}, .dtype = DType::kI32});
  const ValueId x = graph.Emit1(ops::kEmbedding, "lookup", {ids, table});
  const ValueId normed = graph.Emit1(ops::kRmsNorm, "norm", {x, gain}, {{"epsilon", 1e-5}});
  const ValueIds statistics =
      graph.Emit(ops::kCrossEntropy, "cross_entropy", {normed, labels}, {{"classes", std::int64_t{4}}});
  const ValueId loss = graph.AddMetric("loss", 1, 1);
  graph.Emit(ops::kLossSum, "loss.sum", {statistics[0], statistics[1], labels}, {{"scale", 1.0}},
             std::array<ValueId, 1>{loss});
  Graph none = graph;
  none.SetTraining(table, {.frozen = true});
  none.SetTraining(gain, {.frozen = true});
  REQUIRE(Differentiate(&none, ops::kAdd).ok());
  CHECK(Backward(none) == 0);
  Graph without_gain = graph;
  without_gain.SetTraining(gain, {.frozen = true});
  const size_t forward = without_gain.nodes().size();
  REQUIRE(Differentiate(&without_gain, ops::kAdd).ok());
  REQUIRE(without_gain.Verify().ok());
  CHECK(Count(without_gain, Phase::kBackward, "rms_norm_grad") == 1);
  // loss_weight, cross_entropy_grad, rms_norm_grad, embedding_grad.
  REQUIRE(without_gain.nodes().size() == forward + 4);
  const Node& of_norm = without_gain.nodes()[forward + 2];
  CHECK(without_gain.value(of_norm.outputs[1]).kind == ValueKind::kActivation);  // nobody reads it
  CHECK((Gradients(without_gain) == std::set<std::string>{"d_table"}));
}

TEST_CASE("autodiff: an op without a gradient may stand where nothing is trained") {
  for (const bool frozen : {true, false}) {
    Graph graph;
    const ValueId ids = graph.AddInput("ids", {.shape = {2, 3}, .dtype = DType::kI32});
    const ValueId labels = graph.AddInput("labels", {.shape = {2, 3}, .dtype = DType::kI32});
    const auto lookup = [&](const std::string& name) {
      const ValueId table =
          graph.AddParameter(name, {.shape = {5, 4}, .dtype = DType::kF32}, {5, 4}, {}, Role::kTable);
      return std::pair(table, graph.Emit1(ops::kEmbedding, name + ".lookup", {ids, table}));
    };
    const auto [below, x] = lookup("below");
    const auto [table, y] = lookup("table");
    const ValueId sums = graph.Emit1(ops::kBiasGrad, "sums", {x}, {{"dims", std::int64_t{1}}});
    const ValueId logits = graph.Emit1(ops::kBiasAdd, "logits", {y, sums});
    const ValueIds statistics =
        graph.Emit(ops::kCrossEntropy, "cross_entropy", {logits, labels}, {{"classes", std::int64_t{4}}});
    const ValueId loss = graph.AddMetric("loss", 1, 1);
    graph.Emit(ops::kLossSum, "loss.sum", {statistics[0], statistics[1], labels}, {{"scale", 1.0}},
               std::array<ValueId, 1>{loss});
    graph.SetTraining(below, {.frozen = frozen});
    const absl::Status status = Differentiate(&graph, ops::kAdd);
    CHECK(status.ok() == frozen);
    if (frozen) CHECK((Gradients(graph) == std::set<std::string>{"d_table"}));
  }
}

TEST_CASE("autodiff: a graph without a loss is an error") {
  Graph graph;
  CHECK(Message(Differentiate(&graph, ops::kAdd)).find("no loss") != std::string::npos);
}

TEST_CASE("recompute: nothing, one kind, whole blocks") {
  Tiny none;
  REQUIRE(Differentiate(&none.graph, ops::kAdd).ok());
  // gelu_grad reads the product, linear_wgrad the block's input.
  CHECK(Saved(none.graph).contains("layers.1.linear"));
  const size_t nodes = none.graph.nodes().size();
  Recompute(&none.graph, [](const Node&) { return false; });
  CHECK(none.graph.nodes().size() == nodes);

  Tiny full;
  REQUIRE(Differentiate(&full.graph, ops::kAdd).ok());
  Recompute(&full.graph, [](const Node& node) { return node.unit == 1 || node.unit == 2; });
  const absl::Status status = full.graph.Verify();
  REQUIRE_MESSAGE(status.ok(), Message(status));
  // Of the blocks only their inputs are kept: the lookup, and what block 0 gave to block 1 and block 1 to the
  // head.
  for (const std::string& name : Saved(full.graph)) {
    const bool inside = name.starts_with("layers.") && !name.ends_with(".residual");
    CHECK_MESSAGE(!inside, name);
  }
  // The product is repeated for gelu_grad; gelu and the residual sum are not, since nobody reads them again.
  CHECK(Count(full.graph, Phase::kBackward, "linear") == 2);
  CHECK(Count(full.graph, Phase::kBackward, "gelu") == 0);
  for (const Node& node : full.graph.nodes()) CHECK(node.recomputed == node.name.starts_with("again."));
  // Each tensor that is made again knows which one it repeats.
  for (const Node& node : full.graph.nodes()) {
    for (ValueId output : node.outputs) {
      const ValueId first = full.graph.value(output).repeats;
      CHECK((first != kNoValue) == node.recomputed);
      if (first != kNoValue) CHECK(full.graph.value(output).name == "again." + full.graph.value(first).name);
    }
  }
}

TEST_CASE("graph: the verifier names a read before the write") {
  Tiny tiny;
  auto& nodes = tiny.graph.nodes();
  std::swap(nodes[1], nodes[2]);  // gelu before its product
  CHECK(Message(tiny.graph.Verify()) ==
        "graph: node layers.0.gelu reads layers.0.linear before it is produced");
}

}  // namespace engine::graph

// From a row to what it looks for: the row's composition is built on its example, as a local graph, in which the rows
// above are applied as they will have been in the graph of a model.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/compile/match.h"
#include "engine/graph/op.h"

namespace engine::compile {
namespace {

using graph::Attributes;
using graph::OpDef;

// An attribute that no op has: nodes to which the composition hands its attributes on have it too.
constexpr std::string_view kHandedOn = "*";

struct Example {
  LocalGraph graph;
  graph::ValueIds inputs, outputs;
  Attributes attributes;
};

void AddNode(const graph::Node& node, LocalGraph* to) {
  LocalNode local;
  local.op = node.op;
  local.name = node.name;
  local.attributes = node.attributes;
  local.inputs.assign(node.inputs.begin(), node.inputs.end());
  local.outputs.assign(node.outputs.begin(), node.outputs.end());
  local.accumulate = node.op->accumulates & ((1U << node.outputs.size()) - 1);
  local.phase = graph::Phase::kBackward;
  to->nodes.push_back(std::move(local));
}

Example BuildExample(const ops::FusionRow& row, const ops::FusionVariant& variant) {
  Example example;
  graph::Graph composition;
  for (const Shape& shape : variant.inputs)
    example.inputs.push_back(composition.AddInput("", {.shape = shape, .dtype = DType::kF32}));
  for (const Attributes* attributes : {&row.example, &variant.example, &row.where, &variant.attributes}) {
    for (const auto& [name, item] : attributes->items()) example.attributes.Set(name, item);
  }
  Attributes handed = example.attributes;
  handed.Set(kHandedOn, std::int64_t{1});
  const auto compose = row.compose != nullptr ? row.compose : row.op->compose;
  ENGINE_CHECK(compose != nullptr, "{} has no composition", row.op->name);
  example.outputs = compose(&composition, example.inputs, handed);
  for (const graph::Value& value : composition.values()) {
    example.graph.values.push_back({.name = value.name,
                                    .shape = value.type.shape,
                                    .dtype = value.type.dtype,
                                    .layout = {},
                                    .local = value.type.shape});
  }
  for (const graph::Node& node : composition.nodes()) AddNode(node, &example.graph);
  // Who reads the outputs, which so remain.
  LocalNode reader;
  reader.inputs.assign(example.outputs.begin(), example.outputs.end());
  example.graph.nodes.push_back(std::move(reader));
  return example;
}

void ApplyAbove(std::span<const RowPatterns> above, LocalGraph* graph) {
  plan::DeviceProfile all;
  all.fuses = [](const OpDef&, const graph::TensorType&, const Attributes&) { return true; };
  FuseOptions options;
  options.profile = &all;
  options.chunk_of = [](std::int32_t) { return 0; };
  Rewriter rewriter(graph);
  for (const RowPatterns& row : above) {
    for (int i = 0; i < rewriter.size(); ++i) {
      if (auto match = FindFusion(row, i, options, rewriter)) ApplyFusion(*std::move(match), &rewriter);
    }
  }
  rewriter.Finish();
}

FusionPattern::Node PatternNode(const LocalNode& node, const Attributes& example) {
  FusionPattern::Node pattern{.op = node.op,
                              .inputs = {node.inputs.begin(), node.inputs.end()},
                              .outputs = {node.outputs.begin(), node.outputs.end()},
                              .has_all = node.attributes.Has(kHandedOn)};
  for (const auto& [name, item] : node.attributes.items()) {
    const auto& items = example.items();
    const bool same = std::find(items.begin(), items.end(), std::pair(name, item)) != items.end();
    if (name == kHandedOn || (same && pattern.has_all)) continue;
    if (same) {
      pattern.shared.push_back(name);
    } else {
      pattern.fixed.Set(name, item);
    }
  }
  return pattern;
}

size_t IndexOf(const FusionPattern& pattern, const OpDef* op, const ops::FusionRow& row) {
  const auto is = [op](const FusionPattern::Node& node) { return node.op == op; };
  const auto count = std::count_if(pattern.nodes.begin(), pattern.nodes.end(), is);
  ENGINE_CHECK(count == 1, "the composition of {} has {} nodes of the op {} that its row names", row.op->name,
               count, op->name);
  return static_cast<size_t>(std::find_if(pattern.nodes.begin(), pattern.nodes.end(), is) -
                             pattern.nodes.begin());
}

int ValueOfTensor(const FusionPattern& pattern, const ops::TensorOf& tensor, const ops::FusionRow& row) {
  if (tensor.op == nullptr) return -1;
  const FusionPattern::Node& node = pattern.nodes[IndexOf(pattern, tensor.op, row)];
  const std::vector<int>& side = tensor.side == ops::TensorOf::Side::kInput ? node.inputs : node.outputs;
  return side.at(tensor.index);
}

FusionPattern BuildPattern(const ops::FusionRow& row, const ops::FusionVariant& variant,
                           std::span<const RowPatterns> above) {
  Example example = BuildExample(row, variant);
  ApplyAbove(above, &example.graph);
  FusionPattern pattern;
  pattern.values = static_cast<int>(example.graph.values.size());
  pattern.inputs.assign(example.inputs.begin(), example.inputs.end());
  pattern.outputs.assign(example.outputs.begin(), example.outputs.end());
  pattern.attributes = variant.attributes;
  for (const LocalNode& node : example.graph.nodes) {
    if (node.op != nullptr) pattern.nodes.push_back(PatternNode(node, example.attributes));
  }
  pattern.at = IndexOf(pattern, row.at, row);
  pattern.named_by = row.named_by == nullptr ? pattern.at : IndexOf(pattern, row.named_by, row);
  pattern.asked = ValueOfTensor(pattern, row.asks, row);
  pattern.excepted = ValueOfTensor(pattern, row.except.tensor, row);
  return pattern;
}

}  // namespace

std::vector<RowPatterns> PatternsOf(std::span<const ops::FusionRow> rows) {
  std::vector<RowPatterns> patterns;
  for (const ops::FusionRow& row : rows) {
    RowPatterns made{.row = &row, .variants = {}};
    for (const ops::FusionVariant& variant : row.variants)
      made.variants.push_back(BuildPattern(row, variant, patterns));
    patterns.push_back(std::move(made));
  }
  return patterns;
}

}  // namespace engine::compile

// Whether two graphs make their logits in the same way. Both are brought to a form in which only what is computed is left: a
// line a node, in an order that follows from the logits alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/op.h"
#include "engine/graph/rotary.h"
#include "engine/hf/graph_view.h"

namespace engine::hf {
namespace {

using graph::Attributes;
using graph::Graph;
using graph::Node;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

// Of dropout and random streams, which evaluation does not have; whether an input is of packed tensors; what only tells axes
// of the mesh apart.
const std::set<std::string, std::less<>>& IgnoredAttributes() {
  static const std::set<std::string, std::less<>> ignored = {"dropout", "stream", "features", "passes"};
  return ignored;
}

bool Rotates(const Node& node) {
  return node.op->name == "rotate" || (node.op->name == "qkv_split" && node.attributes.Int("rotary", 0) != 0);
}

// Enough digits that no two settings that anyone would choose are the same, few enough that two ways to compute one number
// (256**-0.5, 1/√256) are.
std::string Text(const Attributes::Item& item) {
  if (const auto* number = std::get_if<double>(&item)) return fmt::format("{:.10g}", *number);
  if (const auto* whole = std::get_if<std::int64_t>(&item)) return fmt::format("{}", *whole);
  return std::get<std::string>(item);
}

// What the attributes of a node that rotates come to.
std::string RotationOf(const Graph& graph, const Node& node) {
  const Shape& shape = graph.value(node.inputs[0]).type.shape;
  const graph::RotaryTable table = graph::RotaryTableOf(node.attributes, shape[shape.rank() - 1]);
  std::string text = fmt::format(" {} ×{:.10g}:", table.interleaved ? "pairs" : "halves", table.factor);
  for (std::int64_t i = 0; i < table.half; ++i)
    text += fmt::format(" {:.10g}", table.frequencies[static_cast<std::size_t>(i)]);
  return text;
}

struct Line {
  const Node* node = nullptr;
  std::string exact;  // what two lines that compute the same have in common
};

// Splits that rotate on the way are written as a split and two rotations, which are the same.
class Canonical {
 public:
  explicit Canonical(const Graph& graph) : graph_(graph) {
    if (graph.logits() == graph::kNoValue) return;
    std::vector<std::pair<ValueId, bool>> stack = {{graph.logits(), false}};
    while (!stack.empty()) {
      const auto [id, inputs_done] = stack.back();
      stack.pop_back();
      if (references_.contains(id)) continue;
      const Node* node = ProducerOf(id);
      if (node == nullptr) {
        AddLeaf(id);
        continue;
      }
      if (inputs_done) {
        Add(id, *node);
        continue;
      }
      stack.emplace_back(id, true);
      for (std::size_t i = node->inputs.size(); i-- > 0;) {
        if (Counts(*node, i)) stack.emplace_back(node->inputs[i], false);
      }
    }
  }

  const std::vector<Line>& lines() const { return lines_; }
  const std::vector<ValueId>& leaves() const { return leaves_; }
  bool Reaches(ValueId value) const { return references_.contains(value); }

 private:
  const Node* ProducerOf(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.kind == ValueKind::kActivation ? &graph_.nodes()[static_cast<std::size_t>(value.producer)]
                                                : nullptr;
  }

  // A split that does not rotate may have positions, of which it makes nothing.
  static bool Counts(const Node& node, std::size_t input) {
    return node.op->name != "qkv_split" || input == 0 || Rotates(node);
  }

  // Inputs and parameters are known by their names.
  void AddLeaf(ValueId id) {
    const graph::Parameter* parameter = graph_.FindParameter(id);
    references_[id] = fmt::format(" {}{}", graph_.value(id).name,
                                  parameter != nullptr ? parameter->logical_shape.ToString() : "");
    leaves_.push_back(id);
  }

  void Add(ValueId id, const Node& node) {
    const bool split = node.op->name == "qkv_split";
    const auto output = std::find(node.outputs.begin(), node.outputs.end(), id) - node.outputs.begin();
    std::string exact = fmt::format("{}.{}", node.op->name, output);
    if (!Rotates(node) && !split) {
      for (const auto& [name, item] : SortedAttributes(node)) exact += fmt::format(" {}={}", name, item);
    }
    for (std::size_t i = 0; i < (split ? 1 : node.inputs.size()); ++i)
      exact += references_.at(node.inputs[i]);
    if (node.op->name == "rotate") exact += RotationOf(graph_, node);
    Push(id, node, std::move(exact));
    if (split && Rotates(node) && output < 2) {
      Push(id, node,
           "rotate.0" + references_.at(id) + references_.at(node.inputs[1]) + RotationOf(graph_, node));
    }
  }

  static std::vector<std::pair<std::string, std::string>> SortedAttributes(const Node& node) {
    std::vector<std::pair<std::string, std::string>> sorted;
    for (const auto& [name, item] : node.attributes.items()) {
      if (!IgnoredAttributes().contains(name)) sorted.emplace_back(name, Text(item));
    }
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  void Push(ValueId id, const Node& node, std::string exact) {
    references_[id] = fmt::format(" %{}", lines_.size());
    lines_.push_back({&node, std::move(exact)});
  }

  const Graph& graph_;
  std::vector<Line> lines_;
  std::vector<ValueId> leaves_;
  std::map<ValueId, std::string> references_;
};

// "layers.12.attention.core" → "layers.{l}.attention.core".
std::string WithoutLayers(const std::string& name) {
  std::string text;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string part = name.substr(at, dot - at);
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    text += (at > 0 ? "." : "") + (number && at > 0 ? "{l}" : part);
    at = dot + 1;
  }
  return text;
}

// For messages: the nodes and parameters of a graph that its logits are made of, by name.
struct Named {
  std::string what;  // "rms_norm", "[4096, 4096]"
  std::map<std::string, std::string> attributes;
  std::string reads;
};

std::map<std::string, Named> NamesOf(const Graph& graph, const Canonical& canonical) {
  std::map<std::string, Named> names;
  for (const ValueId leaf : canonical.leaves()) {
    const graph::Parameter* parameter = graph.FindParameter(leaf);
    names[(parameter != nullptr ? "parameter " : "input ") + graph.value(leaf).name].what =
        parameter != nullptr ? parameter->logical_shape.ToString() : "an input";
  }
  for (const Line& line : canonical.lines()) {
    Named& named = names["step " + line.node->name];
    named.what = line.node->op->name;
    for (const auto& [name, item] : line.node->attributes.items()) {
      if (!IgnoredAttributes().contains(name)) named.attributes[name] = Text(item);
    }
    named.reads.clear();
    for (const ValueId input : line.node->inputs)
      named.reads += (named.reads.empty() ? "" : ", ") + WithoutLayers(graph.value(input).name);
  }
  return names;
}

std::string Or(const std::map<std::string, std::string>& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? "none" : found->second;
}

void CompareNamed(const std::string& name, const Named& a, const Named& b, std::string_view their_name,
                  std::vector<std::string>* lines) {
  if (a.what != b.what) {
    lines->push_back(fmt::format("{} is {}, and {} has {}", name, a.what, their_name, b.what));
    return;
  }
  std::map<std::string, std::string> keys = a.attributes;
  keys.insert(b.attributes.begin(), b.attributes.end());
  bool differs = false;
  for (const auto& [key, unused] : keys) {
    const std::string mine = Or(a.attributes, key), other = Or(b.attributes, key);
    if (mine == other) continue;
    differs = true;
    lines->push_back(fmt::format("{} has {} = {}, and {} has {}", name, key, mine, their_name, other));
  }
  if (!differs && a.reads != b.reads)
    lines->push_back(fmt::format("{} reads {}, and that of {} reads {}", name, a.reads, their_name, b.reads));
}

std::vector<std::string> Explain(const std::map<std::string, Named>& ours,
                                 const std::map<std::string, Named>& theirs, std::string_view their_name) {
  std::vector<std::string> lines;
  for (const auto& [key, named] : ours) {
    const std::string name = WithoutLayers(key);
    const auto other = theirs.find(key);
    if (other == theirs.end()) {
      lines.push_back(fmt::format("{} ({}) is none that {} has", name, named.what, their_name));
    } else {
      CompareNamed(name, named, other->second, their_name, &lines);
    }
  }
  for (const auto& [key, named] : theirs) {
    if (!ours.contains(key))
      lines.push_back(
          fmt::format("{} has {} ({}), and the model has not", their_name, WithoutLayers(key), named.what));
  }
  return lines;
}

}  // namespace

std::vector<std::string> Differences(const Graph& ours, const Graph& theirs, std::string_view their_name) {
  const Canonical mine(ours), other(theirs);
  std::vector<std::string> lines;
  for (const graph::Parameter& parameter : ours.parameters()) {
    if (!mine.Reaches(parameter.value)) {
      lines.push_back(fmt::format("parameter {} has no part in the logits",
                                  WithoutLayers(ours.value(parameter.value).name)));
    }
  }
  const bool same =
      std::equal(mine.lines().begin(), mine.lines().end(), other.lines().begin(), other.lines().end(),
                 [](const Line& a, const Line& b) { return a.exact == b.exact; });
  if (!same) {
    const std::vector<std::string> more = Explain(NamesOf(ours, mine), NamesOf(theirs, other), their_name);
    lines.insert(lines.end(), more.begin(), more.end());
    if (lines.empty()) lines.emplace_back("the steps are connected in another way");
  }
  std::vector<std::string> unique;
  std::set<std::string> seen;
  for (std::string& line : lines) {
    if (seen.insert(line).second) unique.push_back(std::move(line));
  }
  return unique;
}

}  // namespace engine::hf

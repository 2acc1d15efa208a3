#include "engine/compile/match.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/graph/op.h"
#include "engine/ops/ops.h"

namespace engine::compile {
namespace {

using graph::Attributes;

bool SameItem(const Attributes& attributes, const std::string& name, const Attributes::Item& item) {
  const auto& items = attributes.items();
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& entry) { return entry.first == name; });
  return found != items.end() ? found->second == item : item == Attributes::Item(std::int64_t{0});
}

// Looks for one pattern around one node: binds the pattern's nodes to nodes of the graph one after the other, along
// the values that they share, and takes a choice back where it leads nowhere.
class Matcher {
 public:
  Matcher(const ops::FusionRow& row, const FusionPattern& pattern, const FuseOptions& options,
          const Rewriter& graph)
      : row_(row), pattern_(pattern), options_(options), g_(graph) {}

  std::optional<FusionMatch> At(int node) {
    at_ = node;
    bound_.nodes.assign(pattern_.nodes.size(), -1);
    bound_.values.assign(static_cast<size_t>(pattern_.values), -1);
    if (!Try(pattern_.at, node)) return std::nullopt;
    return std::move(match_);
  }

 private:
  // What stands for the pattern's nodes and values; −1: not known yet.
  struct Bound {
    absl::InlinedVector<int, 8> nodes;
    absl::InlinedVector<std::int32_t, 16> values;
  };

  // Whether the rest can be bound where `node` of the pattern is `to`.
  bool Try(size_t node, int to) {
    if (!Admits(node, to)) return false;
    const Bound before = bound_;
    for (const bool exchanged : {false, true}) {
      if (exchanged && !pattern_.nodes[node].op->commutes) break;
      if (Bind(node, to, exchanged) && TryRest()) return true;
      bound_ = before;
    }
    return false;
  }

  bool TryRest() {
    // What makes a known value is one node; what reads it may be several.
    for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
      if (bound_.nodes[n] >= 0) continue;
      for (int output : pattern_.nodes[n].outputs) {
        if (Value(output) >= 0) return Try(n, g_.Producer(Value(output)));
      }
    }
    for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
      if (bound_.nodes[n] >= 0) continue;
      for (int input : pattern_.nodes[n].inputs) {
        if (Value(input) < 0) continue;
        const std::vector<int>& readers = g_.Readers(Value(input));
        return std::any_of(readers.begin(), readers.end(), [&](int reader) { return Try(n, reader); });
      }
    }
    const bool all = std::all_of(bound_.nodes.begin(), bound_.nodes.end(), [](int n) { return n >= 0; });
    return all && Accept();
  }

  bool Admits(size_t node, int to) const {
    if (to < 0 || !g_.alive(to) || Taken(to)) return false;
    const FusionPattern::Node& wanted = pattern_.nodes[node];
    const LocalNode& found = g_.node(to);
    if (found.op != wanted.op || found.inputs.size() != wanted.inputs.size() ||
        found.outputs.size() != wanted.outputs.size()) {
      return false;
    }
    const LocalNode& at = g_.node(at_);
    if (row_.phase.has_value() && at.phase != *row_.phase) return false;
    if (!row_.across_phases && found.phase != at.phase) return false;
    if (row_.same_unit && found.unit != at.unit) return false;
    if (found.unit != at.unit && options_.chunk_of(found.unit) != options_.chunk_of(at.unit)) return false;
    const auto& fixed = wanted.fixed.items();
    return std::all_of(fixed.begin(), fixed.end(), [&](const auto& entry) {
      return SameItem(found.attributes, entry.first, entry.second);
    });
  }

  bool Bind(size_t node, int to, bool exchanged) {
    const FusionPattern::Node& wanted = pattern_.nodes[node];
    const LocalNode& found = g_.node(to);
    bound_.nodes[node] = to;
    for (size_t i = 0; i < wanted.inputs.size(); ++i) {
      const size_t input = exchanged && i < 2 ? 1 - i : i;
      if (!BindValue(wanted.inputs[input], found.inputs[i])) return false;
    }
    for (size_t i = 0; i < wanted.outputs.size(); ++i) {
      if (!BindValue(wanted.outputs[i], found.outputs[i])) return false;
    }
    return true;
  }

  bool BindValue(int value, std::int32_t to) {
    std::int32_t& bound = bound_.values[static_cast<size_t>(value)];
    if (bound < 0) bound = to;
    return bound == to;
  }

  std::int32_t Value(int value) const { return bound_.values[static_cast<size_t>(value)]; }
  bool Taken(int node) const {
    return std::find(bound_.nodes.begin(), bound_.nodes.end(), node) != bound_.nodes.end();
  }

  // All are bound: whether they can become one node. If so, it is match_.
  bool Accept() {
    std::optional<Attributes> attributes = MergedAttributes();
    if (!attributes.has_value() || !InnerValuesStayInside() || !InOrder() || Excepted() || !OneDimEach())
      return false;
    const std::uint32_t adds = AddedOutputs();
    const std::uint32_t all = (1U << pattern_.outputs.size()) - 1;
    const std::uint32_t sums = row_.op->accumulates & all;
    if ((adds & ~sums) != 0 || (sums & ~adds & ~UnreadOutputs()) != 0) return false;
    if (pattern_.asked >= 0 &&
        !options_.profile->fuses(*row_.op, g_.type(Value(pattern_.asked)), *attributes))
      return false;
    match_.fused = g_.node(at_);
    match_.fused.op = row_.op;
    const LocalNode& named_by = g_.node(bound_.nodes[pattern_.named_by]);
    match_.fused.name = named_by.name;
    match_.fused.component = named_by.component;
    match_.fused.inputs.clear();
    match_.fused.outputs.clear();
    for (int input : pattern_.inputs) match_.fused.inputs.push_back(Value(input));
    for (int output : pattern_.outputs) match_.fused.outputs.push_back(Value(output));
    match_.fused.attributes = *std::move(attributes);
    match_.fused.accumulate = adds;
    match_.at = at_;
    match_.asked = pattern_.asked < 0 ? -1 : Value(pattern_.asked);
    for (int node : bound_.nodes) {
      if (node != at_) match_.others.push_back(node);
    }
    return true;
  }

  // Nothing if two nodes disagree, or if the row wants others.
  std::optional<Attributes> MergedAttributes() const {
    Attributes merged;
    if (!Merge(pattern_.named_by, &merged)) return std::nullopt;
    for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
      if (n != pattern_.named_by && !Merge(n, &merged)) return std::nullopt;
    }
    for (const auto& [name, item] : pattern_.attributes.items()) merged.Set(name, item);
    // With it the product is rounded before anything else is done with it, as it is where nothing is fused.
    if (merged.Int("invariant", 0) != 0 && row_.stage != ops::FusionStage::kEveryDevice &&
        HasForwardProduct())
      return std::nullopt;
    for (const auto& [name, item] : row_.where.items()) {
      if (!merged.Has(name) || !SameItem(merged, name, item)) return std::nullopt;
    }
    return merged;
  }

  bool HasForwardProduct() const {
    return std::any_of(pattern_.nodes.begin(), pattern_.nodes.end(),
                       [](const FusionPattern::Node& node) { return node.op == &ops::kLinear; });
  }

  bool Merge(size_t n, Attributes* merged) const {
    const FusionPattern::Node& node = pattern_.nodes[n];
    for (const auto& [name, item] : g_.node(bound_.nodes[n]).attributes.items()) {
      const bool shared = std::find(node.shared.begin(), node.shared.end(), name) != node.shared.end();
      if (node.fixed.Has(name) || (!node.has_all && !shared)) continue;
      if (merged->Has(name) && !SameItem(*merged, name, item)) return false;
      merged->Set(name, item);
    }
    return true;
  }

  bool IsOutput(int value) const {
    return std::find(pattern_.outputs.begin(), pattern_.outputs.end(), value) != pattern_.outputs.end();
  }

  bool InnerValuesStayInside() const {
    for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
      const std::vector<int>& outputs = pattern_.nodes[n].outputs;
      for (size_t o = 0; o < outputs.size(); ++o) {
        if (IsOutput(outputs[o])) continue;
        if (((g_.node(bound_.nodes[n]).accumulate >> o) & 1U) != 0) return false;
        const std::vector<int>& readers = g_.Readers(Value(outputs[o]));
        if (!std::all_of(readers.begin(), readers.end(), [&](int reader) { return Taken(reader); }))
          return false;
      }
    }
    return true;
  }

  // Inputs are there when the fused node runs, and its outputs are read behind it.
  bool InOrder() const {
    for (int input : pattern_.inputs) {
      const int producer = g_.Producer(Value(input));
      if (producer >= at_ || (producer >= 0 && Taken(producer))) return false;
    }
    for (int output : pattern_.outputs) {
      for (int reader : g_.Readers(Value(output))) {
        if (reader < at_ && !Taken(reader)) return false;
      }
    }
    return true;
  }

  bool Excepted() const {
    return pattern_.excepted >= 0 && g_.Is(g_.OnlyReader(Value(pattern_.excepted)), *row_.except.reader);
  }

  bool OneDimEach() const {
    return std::all_of(row_.one_dim.begin(), row_.one_dim.end(), [&](size_t input) {
      return input >= pattern_.inputs.size() || g_.type(Value(pattern_.inputs[input])).shape.rank() == 1;
    });
  }

  // Bit k: output k of the fused node is one that its node adds to.
  std::uint32_t AddedOutputs() const {
    std::uint32_t adds = 0;
    for (size_t k = 0; k < pattern_.outputs.size(); ++k) {
      for (size_t n = 0; n < pattern_.nodes.size(); ++n) {
        const std::vector<int>& outputs = pattern_.nodes[n].outputs;
        const auto found = std::find(outputs.begin(), outputs.end(), pattern_.outputs[k]);
        if (found == outputs.end()) continue;
        adds |= ((g_.node(bound_.nodes[n]).accumulate >> (found - outputs.begin())) & 1U) << k;
      }
    }
    return adds;
  }

  // Bit k: nobody reads output k of the fused node, which a node makes beside others: the gradient of a frozen gain.
  std::uint32_t UnreadOutputs() const {
    std::uint32_t unread = 0;
    for (size_t k = 0; k < pattern_.outputs.size(); ++k) {
      if (!g_.Readers(Value(pattern_.outputs[k])).empty()) continue;
      for (const FusionPattern::Node& node : pattern_.nodes) {
        const auto& made = node.outputs;
        const bool makes = std::find(made.begin(), made.end(), pattern_.outputs[k]) != made.end();
        if (makes && made.size() > 1) unread |= 1U << k;
      }
    }
    return unread;
  }

  const ops::FusionRow& row_;
  const FusionPattern& pattern_;
  const FuseOptions& options_;
  const Rewriter& g_;
  int at_ = -1;
  Bound bound_;
  FusionMatch match_;
};

}  // namespace

std::optional<FusionMatch> FindFusion(const RowPatterns& row, int at, const FuseOptions& options,
                                      const Rewriter& graph) {
  if (!graph.Is(at, *row.row->at)) return std::nullopt;
  for (const FusionPattern& pattern : row.variants) {
    std::optional<FusionMatch> match = Matcher(*row.row, pattern, options, graph).At(at);
    if (match.has_value()) return match;
  }
  return std::nullopt;
}

void ApplyFusion(FusionMatch match, Rewriter* graph) {
  for (int node : match.others) graph->Remove(node);
  graph->Replace(match.at, std::move(match.fused));
}

}  // namespace engine::compile

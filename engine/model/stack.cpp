#include "engine/model/stack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "engine/base/status.h"
#include "engine/model/step_context.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

using recipe::Entry;
using recipe::Node;

constexpr std::int64_t kMostLayers = 2000;

// Branches of one block: each residual step adds all that it reads but the first.
int BranchesOf(const Block& block) {
  int branches = 0;
  for (const Node& step : block.steps.items) {
    const Node* module = step.Find("do");
    const Node* of = step.Find("of");
    if (module == nullptr || of == nullptr || module->string != "residual") continue;
    branches += std::max(0, static_cast<int>(of->items.size()) - 1);
  }
  return branches;
}

// "gqa as attention".
bool ReadUse(const Node& node, const Blocks& blocks, std::vector<BlockUse>* uses,
             std::vector<Diagnostic>* diagnostics) {
  constexpr std::string_view kAs = " as ";
  if (!node.is_string()) {
    ReportText(ErrorAt(node, fmt::format("a layer names its blocks, and this is {}", Describe(node)),
                       "\"gqa as attention\""),
               diagnostics);
    return false;
  }
  const std::size_t as = node.string.find(kAs);
  const std::string name = node.string.substr(0, as);
  const std::string label = as == std::string::npos ? "" : node.string.substr(as + kAs.size());
  const Block* block = blocks.Find(name);
  if (block == nullptr) {
    if (!blocks.Has(name)) {
      ReportText(ErrorAt(node, fmt::format("there is no block '{}'", recipe::Shown(name)),
                         NearestHint(name, blocks.Names())),
                 diagnostics);
    }
    return false;
  }
  uses->push_back({block, label, node.string});
  return true;
}

// One name, or a list of them.
bool ReadLayer(const Node& node, const Blocks& blocks, std::vector<BlockUse>* uses,
               std::vector<Diagnostic>* diagnostics) {
  if (node.kind != Node::Kind::kArray) return ReadUse(node, blocks, uses, diagnostics);
  bool good = true;
  for (const Node& item : node.items) good = ReadUse(item, blocks, uses, diagnostics) && good;
  if (!node.items.empty()) return good;
  ReportText(ErrorAt(node, "a layer without blocks"), diagnostics);
  return false;
}

bool ReadPattern(const Node& step, const Node& pattern, const Blocks& blocks, StackPlan* plan,
                 std::vector<Diagnostic>* diagnostics) {
  const Node* letters = step.Find("letters");
  if (!pattern.is_string() || pattern.string.empty() || letters == nullptr ||
      letters->kind != Node::Kind::kTable) {
    ReportText(ErrorAt(pattern, "a pattern is a string of letters, and `letters` says which block each is",
                       "pattern = \"M-M*\", letters = { M = \"mamba\", \"*\" = \"gqa\", \"-\" = \"mlp\" }"),
               diagnostics);
    return false;
  }
  std::map<char, std::vector<BlockUse>> known;
  bool good = true;
  for (const Entry& entry : letters->entries) {
    if (entry.key.size() != 1) {
      ReportText(ErrorAt(entry, fmt::format("'{}' is no single letter", recipe::Shown(entry.key))),
                 diagnostics);
      good = false;
      continue;
    }
    good = ReadLayer(entry.value, blocks, &known[entry.key[0]], diagnostics) && good;
  }
  for (const char letter : pattern.string) {
    const auto found = known.find(letter);
    if (found == known.end()) {
      ReportText(ErrorAt(pattern, fmt::format("the pattern has a '{}', and `letters` does not", letter)),
                 diagnostics);
      return false;
    }
    plan->layers.push_back(found->second);
  }
  return good;
}

// One end of a ramp; nothing, with a mistake, where it is no number.
std::optional<double> RampEnd(const Node& end, const std::string& name,
                              std::vector<Diagnostic>* diagnostics) {
  if (end.kind == Node::Kind::kInteger) return static_cast<double>(end.integer);
  if (end.kind == Node::Kind::kFloat && std::isfinite(end.number)) return end.number;
  ReportText(ErrorAt(end,
                     fmt::format("the ramp of {} goes from a number to a number, and this is {}",
                                 recipe::Shown(name), Describe(end)),
                     "ramp = { p = [0.0, 0.1] }; `set` and `cycle` take expressions"),
             diagnostics);
  return std::nullopt;
}

}  // namespace

std::optional<StackPlan> PlanStack(const Node& step, const Blocks& blocks, Scope* scope,
                                   AttributeReader* attributes, std::vector<Diagnostic>* diagnostics) {
  StackPlan plan;
  const Node* pattern = step.Find("pattern");
  const Node* repeat = step.Find("repeat");
  const Node* layer = step.Find("layer");
  if ((pattern != nullptr) == (repeat != nullptr) || (repeat != nullptr) != (layer != nullptr)) {
    ReportText(ErrorAt(*step.Find("do"), "a stack needs either repeat and layer, or pattern and letters",
                       "repeat = \"L\", layer = [\"gqa as attention\", \"mlp\"]"),
               diagnostics);
    return std::nullopt;
  }
  if (pattern != nullptr) {
    if (!ReadPattern(step, *pattern, blocks, &plan, diagnostics)) return std::nullopt;
  } else {
    const Node* count_node = attributes->Substitute(*repeat, scope);
    if (count_node == nullptr) return std::nullopt;
    const absl::StatusOr<std::int64_t> count = scope->dims->Integer(*count_node);
    if (!count.ok() || *count < 1 || *count > kMostLayers) {
      ReportText(
          ErrorAt(*count_node,
                  fmt::format("repeat: {}", count.ok() ? fmt::format("{} layers; at least 1, and at most {}",
                                                                     *count, kMostLayers)
                                                       : Message(count.status()))),
          diagnostics);
      return std::nullopt;
    }
    std::vector<BlockUse> uses;
    if (!ReadLayer(*layer, blocks, &uses, diagnostics)) return std::nullopt;
    plan.layers.assign(static_cast<std::size_t>(*count), uses);
  }
  for (const std::vector<BlockUse>& uses : plan.layers) {
    for (const BlockUse& use : uses) plan.branches += BranchesOf(*use.block);
  }
  return plan;
}

std::string VariantOf(const Node& step, const std::vector<BlockUse>& uses, std::int64_t layer) {
  std::vector<std::string> parts;
  if (step.Find("pattern") != nullptr) {
    for (const BlockUse& use : uses) parts.push_back(use.text);
  }
  if (const Node* cycle = step.Find("cycle"); cycle != nullptr) {
    for (const Entry& entry : cycle->entries) {
      const std::vector<Node>& values = entry.value.items;
      if (values.empty()) continue;  // a mistake, which BindingsOf finds
      const Node& value = values[static_cast<std::size_t>(layer) % values.size()];
      parts.push_back(fmt::format("{} = {}", entry.key, recipe::InlineToml(value)));
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Bindings BindingsOf(const Node& step, std::int64_t layer, std::int64_t layers,
                    std::vector<Diagnostic>* diagnostics) {
  Bindings bindings;
  const auto each = [&](const char* key, const auto& bind) {
    const Node* table = step.Find(key);
    if (table == nullptr) return;
    if (table->kind != Node::Kind::kTable) {
      ReportText(ErrorAt(*table, fmt::format("{} is a table by name, not {}", key, Describe(*table))),
                 diagnostics);
      return;
    }
    for (const Entry& entry : table->entries) bind(entry);
  };
  const auto is_list = [&](const Entry& entry, std::string_view of, std::size_t least, std::size_t most) {
    const std::size_t count = entry.value.items.size();
    if (entry.value.kind == Node::Kind::kArray && count >= least && count <= most) return true;
    const std::string found =
        entry.value.kind == Node::Kind::kArray ? fmt::format("one of {}", count) : Describe(entry.value);
    ReportText(ErrorAt(entry.value,
                       fmt::format("{} needs a list of {}, not {}", recipe::Shown(entry.key), of, found)),
               diagnostics);
    return false;
  };
  each("set", [&](const Entry& entry) { bindings[entry.key].node = &entry.value; });
  each("cycle", [&](const Entry& entry) {
    if (!is_list(entry, "values, which layers take in turn", 1, std::numeric_limits<std::size_t>::max()))
      return;
    bindings[entry.key].node = &entry.value.items[static_cast<std::size_t>(layer) % entry.value.items.size()];
  });
  each("ramp", [&](const Entry& entry) {
    if (!is_list(entry, "two numbers", 2, 2)) return;
    const Node& first = entry.value.items[0];
    const Node& last = entry.value.items[1];
    const std::optional<double> from = RampEnd(first, entry.key, diagnostics);
    const std::optional<double> to = RampEnd(last, entry.key, diagnostics);
    Node made = first;
    made.kind = Node::Kind::kFloat;
    const double share = layers > 1 ? static_cast<double>(layer) / static_cast<double>(layers - 1) : 0;
    // Behind a mistake the steps are checked with the other end.
    const double begin = from.value_or(to.value_or(0));
    made.number = begin + share * (to.value_or(begin) - begin);
    bindings[entry.key].made = std::move(made);
  });
  return bindings;
}

}  // namespace engine::model

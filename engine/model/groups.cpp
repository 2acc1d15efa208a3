#include "engine/model/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "engine/model/attributes.h"
#include "engine/model/step_context.h"
#include "engine/recipe/document.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

using recipe::Entry;
using recipe::Node;

class Group {
 public:
  Group(const recipe::Recipe& recipe, const Node& node, std::vector<Diagnostic>* diagnostics)
      : recipe_(recipe), node_(node), diagnostics_(diagnostics) {}

  void Apply(graph::Graph* graph) {
    if (!Read()) return;
    std::vector<bool> used(patterns_.size(), false);
    for (const graph::Parameter& parameter : graph->parameters()) {
      const std::string& name = graph->value(parameter.value).name;
      bool matches = false;
      for (std::size_t i = 0; i < patterns_.size(); ++i) {
        const bool this_one = Matches(patterns_[i]->string, name);
        used[i] = used[i] || this_one;
        matches = matches || this_one;
      }
      if (!matches) continue;
      graph::TrainingSettings settings = parameter.training;
      if (frozen_.has_value()) settings.frozen = *frozen_;
      if (scale_.has_value()) settings.learning_rate_scale = *scale_;
      if (weight_decay_.has_value()) settings.weight_decay = weight_decay_;
      graph->SetTraining(parameter.value, settings);
    }
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (used[i]) continue;
      std::vector<std::string> names;
      for (const graph::Parameter& parameter : graph->parameters())
        names.push_back(graph->value(parameter.value).name);
      Fail(*patterns_[i], fmt::format("no parameter is called {}", Named(*patterns_[i])),
           NearestHint(patterns_[i]->string, names));
    }
  }

 private:
  bool Fail(const Node& node, std::string message, std::string hint = "") {
    ReportText(ErrorAt(node, std::move(message), std::move(hint)), diagnostics_);
    return false;
  }

  bool Read() {
    if (node_.kind != Node::Kind::kTable)
      return Fail(node_, fmt::format("a group is a table, not {}", Describe(node_)),
                  "write [[optimizer.group]]");
    bool good = true;
    for (const Entry& entry : node_.entries) good = ReadKey(entry) && good;
    if (node_.Find("match") == nullptr)
      return Fail(node_, "a group needs match, names of parameters", "match = \"layers.*.norm.*\"");
    if (node_.Find("learning_rate") != nullptr && node_.Find("learning_rate_scale") != nullptr)
      return Fail(*node_.Find("learning_rate_scale"),
                  "a group has either learning_rate or learning_rate_scale");
    if (node_.entries.size() == 1)
      return Fail(node_, "the group sets nothing", "frozen = true, weight_decay = 0.0, …");
    return good;
  }

  bool ReadKey(const Entry& entry) {
    if (entry.key == "match") return ReadMatch(entry.value);
    if (entry.key == "frozen") {
      frozen_ = entry.value.boolean;
      return entry.value.kind == Node::Kind::kBoolean ||
             Fail(entry.value, fmt::format("frozen is true or false, not {}", Describe(entry.value)));
    }
    const auto def = std::find_if(GroupKeys().begin(), GroupKeys().end(),
                                  [&](const AttributeDef& known) { return known.name == entry.key; });
    if (def == GroupKeys().end()) {
      std::vector<std::string> names;
      for (const AttributeDef& known : GroupKeys()) names.emplace_back(known.name);
      ReportText(ErrorAt(entry, fmt::format("unknown key '{}' of a group", recipe::Shown(entry.key)),
                         NearestHint(entry.key, names)),
                 diagnostics_);
      return false;
    }
    const Node& node = entry.value;
    const bool is_number = node.kind == Node::Kind::kInteger || node.kind == Node::Kind::kFloat;
    const double number = node.kind == Node::Kind::kInteger ? static_cast<double>(node.integer) : node.number;
    if (!is_number || !std::isfinite(number) || !InRange(*def, number)) {
      return Fail(node, fmt::format("{} is a number from {} to {}, not {}", entry.key, def->min, def->max,
                                    Describe(node)));
    }
    if (entry.key == "weight_decay") weight_decay_ = number;
    if (entry.key == "learning_rate_scale") scale_ = number;
    if (entry.key == "learning_rate" && recipe_.optimizer.learning_rate > 0)
      scale_ = number / recipe_.optimizer.learning_rate;
    return true;
  }

  bool ReadMatch(const Node& node) {
    if (node.kind == Node::Kind::kString) {
      patterns_.push_back(&node);
      return true;
    }
    for (const Node& item : node.items) {
      if (item.kind != Node::Kind::kString)
        return Fail(item, fmt::format("match names parameters, not {}", Describe(item)));
      patterns_.push_back(&item);
    }
    return node.kind == Node::Kind::kArray ||
           Fail(node, fmt::format("match is a name or a list of them, not {}", Describe(node)));
  }

  const recipe::Recipe& recipe_;
  const Node& node_;
  std::vector<Diagnostic>* diagnostics_;
  std::vector<const Node*> patterns_;
  std::optional<bool> frozen_;
  std::optional<double> scale_;
  std::optional<double> weight_decay_;
};

}  // namespace

const std::vector<AttributeDef>& GroupKeys() {
  static const std::vector<AttributeDef> keys = {
      {.name = "match",
       .kind = AttributeKind::kNames,
       .doc = "Names of parameters, one or a list; * stands for any characters, ? for one.",
       .required = true},
      {.name = "frozen",
       .kind = AttributeKind::kFlag,
       .initial = "false",
       .doc = "They keep their first values: no gradient, no optimizer state, and no backward pass that only "
              "they need."},
      {.name = "learning_rate",
       .kind = AttributeKind::kNumber,
       .doc = "In place of optimizer.learning_rate; the schedule moves both alike.",
       .min = 0,
       .max = 1e3},
      {.name = "learning_rate_scale",
       .kind = AttributeKind::kNumber,
       .initial = "1",
       .doc = "Factor of the learning rate.",
       .min = 0,
       .max = 1e6},
      {.name = "weight_decay",
       .kind = AttributeKind::kNumber,
       .doc = "In place of optimizer.weight_decay, and for gains and biases too, which have none else.",
       .min = 0,
       .max = 1e3}};
  return keys;
}

void ApplyGroups(const recipe::Recipe& recipe, graph::Graph* graph, std::vector<Diagnostic>* diagnostics) {
  const Node* groups = recipe.text == nullptr ? nullptr : recipe.text->Find("optimizer.group");
  if (groups == nullptr) return;
  if (groups->kind != Node::Kind::kArray) {
    ReportText(ErrorAt(*groups, fmt::format("optimizer.group is a list of tables, not {}", Describe(*groups)),
                       "write [[optimizer.group]]"),
               diagnostics);
    return;
  }
  for (const Node& node : groups->items) Group(recipe, node, diagnostics).Apply(graph);
  const std::vector<graph::Parameter>& parameters = graph->parameters();
  const bool trains =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const graph::Parameter& parameter) { return !parameter.training.frozen; });
  if (!trains && !parameters.empty())
    ReportText(ErrorAt(*groups, "all parameters are frozen: nothing would be trained"), diagnostics);
}

bool Matches(std::string_view pattern, std::string_view name) {
  // The usual walk with one place to come back to.
  std::size_t p = 0, n = 0, star = std::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace engine::model

#include "engine/model/step_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/model/step_context.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

using graph::kNoValue;
using graph::ValueId;
using graph::ValueIds;
using recipe::Node;

}  // namespace

void StepValues::Report(const Node& node, std::string message, std::string hint) {
  ReportText(ErrorAt(node, std::move(message), std::move(hint)), diagnostics_);
}

std::optional<ValueIds> StepValues::Inputs(const Node& step, const ModuleDef& module, Scope* scope) {
  const Node* of = step.Find("of");
  std::vector<const Node*> names;
  if (of != nullptr && of->kind == Node::Kind::kArray) {
    for (const Node& item : of->items) names.push_back(&item);
  } else if (of != nullptr) {
    names.push_back(of);
  }
  if (of != nullptr && module.most_inputs == 0) {
    Report(*of, fmt::format("{} reads no values", module.name), "leave out `of`");
    return std::nullopt;
  }
  ValueIds inputs;
  bool good = true;
  if (of == nullptr && module.most_inputs != 0) {
    const std::optional<ValueId> last = Read(scope->last, PlaceOf(step), scope);
    if (!last.has_value()) return std::nullopt;
    inputs.push_back(*last);
  }
  for (const Node* name : names) {
    const std::optional<ValueId> value = ReadName(*name, scope);
    good = good && value.has_value();
    if (value.has_value()) inputs.push_back(*value);
  }
  if (!good) return std::nullopt;
  const int count = static_cast<int>(inputs.size());
  if (count >= module.least_inputs && (module.most_inputs < 0 || count <= module.most_inputs)) return inputs;
  Report(of != nullptr ? *of : PlaceOf(step),
         fmt::format("{} reads {}{}, and {} {} given", module.name,
                     module.least_inputs == module.most_inputs ? "" : "at least ", module.least_inputs, count,
                     count == 1 ? "is" : "are"),
         std::string(module.reads));
  return std::nullopt;
}

std::optional<ValueId> StepValues::ReadName(const Node& name, Scope* scope) {
  const Node* node = attributes_.Substitute(name, scope);
  if (node == nullptr) return std::nullopt;
  if ((node != nullptr && node->is_string()) && !node->string.empty())
    return Read(node->string, *node, scope);
  Report(*node, fmt::format("`of` names values, and this is {}", Describe(*node)));
  return std::nullopt;
}

std::optional<ValueId> StepValues::Read(const std::string& name, const Node& at, Scope* scope) {
  if (name.empty()) {
    Report(at, "there is no one last result that this step could read", "say by `of` what it reads");
    return std::nullopt;
  }
  NamedValue* value = scope->Find(name);
  if (value == nullptr && scope->LostNames()) return std::nullopt;
  if (value == nullptr) {
    Report(at, fmt::format("there is no value '{}' here", recipe::Shown(name)),
           NearestHint(name, scope->Names()));
    return std::nullopt;
  }
  value->read = true;
  if (value->value == kNoValue) return std::nullopt;
  return value->value;
}

std::vector<std::string> StepValues::ResultNames(const Node& step, std::size_t count) const {
  std::vector<std::string> names;
  const Node* to = step.Find("to");
  if (to != nullptr && to->kind == Node::Kind::kArray) {
    for (const Node& item : to->items) names.push_back(item.string);
  } else if (to != nullptr) {
    names.push_back(to->string);
  } else if (const Node* parts = step.Find("parts"); parts != nullptr) {
    for (const recipe::Entry& part : parts->entries) names.push_back(part.key);
  } else if (count == 1) {
    names.push_back(recipe::StepName(step));
  }
  return names;
}

void StepValues::Name(const Node& step, const ModuleDef& module, const ValueIds& results, Scope* scope) {
  const std::vector<std::string> names = ResultNames(step, results.size());
  const bool empty =
      std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); });
  if (names.size() != results.size() || empty) {
    const Node* to = step.Find("to");
    Report(to != nullptr ? *to : PlaceOf(step),
           fmt::format("{} gives {} result{}, and {} {} named", module.name, results.size(),
                       results.size() == 1 ? "" : "s", names.size(), names.size() == 1 ? "is" : "are"),
           results.size() == 3 ? "to = [\"q\", \"k\", \"v\"]" : "name each by `to`");
    scope->lost_names = true;
    return;
  }
  for (std::size_t i = 0; i < names.size(); ++i) Set(names[i], {results[i], &step}, scope);
  if (module.most_inputs != 0) scope->last = names.size() == 1 ? names[0] : "";
}

void StepValues::Forget(const Node& step, const ModuleDef* module, Scope* scope) {
  const std::vector<std::string> names = ResultNames(step, 1);
  for (const std::string& name : names) Set(name, {kNoValue, &step, true}, scope);
  if (module == nullptr || module->most_inputs != 0) scope->last = names.size() == 1 ? names[0] : "";
}

void StepValues::Set(const std::string& name, NamedValue value, Scope* scope) {
  const auto [known, fresh] = scope->values.try_emplace(name, value);
  if (fresh) return;
  ReportUnread(name, known->second);
  known->second = value;
}

void StepValues::ReportUnread(const std::string& name, const NamedValue& value) {
  if (value.read || value.step == nullptr || value.value == kNoValue || !AllGood()) return;
  ++unread_;
  Report(PlaceOf(*value.step), fmt::format("nothing reads '{}', which this step gives", recipe::Shown(name)),
         "remove the step, or name it in the `of` of one behind it");
}

void StepValues::ReportUnread(const Scope& scope, std::string_view gives) {
  for (const auto& [name, value] : scope.values) {
    if (name != gives) ReportUnread(name, value);
  }
}

void StepValues::HandIn(const Node& step, Scope* scope, Scope* into) {
  const Node* of = step.Find("of");
  const auto hand = [&](const std::string& name, const std::optional<ValueId>& value) {
    into->values[name] = {value.value_or(kNoValue), nullptr};
  };
  if (of != nullptr && of->kind == Node::Kind::kTable) {
    for (const recipe::Entry& entry : of->entries) hand(entry.key, ReadName(entry.value, scope));
  } else if (of != nullptr) {
    hand("x", ReadName(*of, scope));
  } else if (!scope->last.empty()) {  // a call may read other names alone
    hand("x", Read(scope->last, PlaceOf(step), scope));
  }
}

}  // namespace engine::model

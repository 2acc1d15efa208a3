#include "engine/model/attributes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/expression.h"
#include "engine/model/rotary.h"

namespace engine::model {
namespace {

using recipe::Entry;
using recipe::Node;

bool IsStepKey(std::string_view key) {
  return std::any_of(StepKeys().begin(), StepKeys().end(),
                     [&](const StepKey& known) { return known.name == key; });
}

template <typename Words>
std::vector<std::string> Strings(const Words& words) {
  std::vector<std::string> strings;
  strings.reserve(std::size(words));
  for (const std::string_view word : words) strings.emplace_back(word);
  return strings;
}

bool HasDollar(const Node& node) { return node.is_string() && node.string.starts_with('$'); }

}  // namespace

std::string NearestHint(std::string_view word, const std::vector<std::string>& words) {
  constexpr std::size_t kMostNamed = 24;
  const std::string nearest = NearestWord(word, words);
  if (!nearest.empty()) return fmt::format("did you mean '{}'?", nearest);
  if (words.empty()) return "";
  const std::vector<std::string> first(words.begin(), words.begin() + std::min(words.size(), kMostNamed));
  return fmt::format("there are {}{}", fmt::join(first, ", "), words.size() > kMostNamed ? ", …" : "");
}

std::string AttributeHint(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kMostModules = 3;
  std::string hint = NearestHint(word, known);
  if (!NearestWord(word, known).empty()) return hint;
  std::vector<std::string_view> others;
  for (const ModuleDef* module : Modules()) {
    const bool has = std::any_of(module->attributes.begin(), module->attributes.end(),
                                 [&](const AttributeDef& def) { return def.name == word; });
    if (has) others.push_back(module->name);
  }
  if (others.empty() || others.size() > kMostModules) return hint;
  return fmt::format("{}{}'{}' is an attribute of {}", hint, hint.empty() ? "" : "; ", word,
                     fmt::join(others, ", "));
}

bool AttributeReader::Fail(const Node& node, const std::string& message, std::string hint) {
  ReportText(ErrorAt(node, message, std::move(hint)), diagnostics_);
  return false;
}

const Node* AttributeReader::Substitute(const Node& node, Scope* scope) {
  if (!HasDollar(node)) return &node;
  const std::string_view name = std::string_view(node.string).substr(1);
  std::vector<std::string> known;
  for (const Scope* at = scope; at != nullptr; at = at->outer) {
    if (at->bindings == nullptr) continue;
    if (const auto found = at->bindings->find(name); found != at->bindings->end()) {
      found->second.read = true;
      return &found->second.value();
    }
    for (const auto& [other, binding] : *at->bindings) known.push_back(other);
  }
  Fail(node, fmt::format("nothing gives ${}", recipe::Shown(name)),
       known.empty() ? fmt::format("the stack or call gives it by set = {{ {} = … }}", name)
                     : NearestHint(name, known));
  return nullptr;
}

bool AttributeReader::Read(const Node& step, const ModuleDef& module, Scope* scope, StepContext* context) {
  bool good = true;
  const auto def_of = [&](std::string_view name) -> const AttributeDef* {
    const auto found = std::find_if(module.attributes.begin(), module.attributes.end(),
                                    [&](const AttributeDef& def) { return def.name == name; });
    return found == module.attributes.end() ? nullptr : &*found;
  };
  for (const Entry& entry : step.entries) {
    if (IsStepKey(entry.key)) continue;
    const AttributeDef* def = def_of(entry.key);
    if (def == nullptr) {
      std::vector<std::string> names;
      for (const AttributeDef& known : module.attributes) names.emplace_back(known.name);
      for (const StepKey& known : StepKeys()) names.emplace_back(known.name);
      ReportText(
          ErrorAt(entry, fmt::format("{} has no attribute '{}'", module.name, recipe::Shown(entry.key)),
                  AttributeHint(entry.key, names)),
          diagnostics_);
      good = false;
      continue;
    }
    const Node* node = Substitute(entry.value, scope);
    AttributeValue value{.def = def, .node = node};
    if (node == nullptr || !ReadOne(*node, scope, &value)) {
      good = false;
    } else if (def->kind != AttributeKind::kRotary || !value.rotary.attributes.items().empty()) {
      context->AddAttribute(std::move(value));
    }
  }
  for (const AttributeDef& def : module.attributes) {
    if (step.Find(def.name) != nullptr) continue;
    if (def.required) {
      good = Fail(PlaceOf(step), fmt::format("{} needs {}", module.name, def.name), std::string(def.doc));
    } else if (!def.initial.empty() && !(def.may_lack && scope->Find(def.initial) == nullptr)) {
      AttributeValue value{.def = &def};
      if (ReadDefault(def, scope, step, &value)) {
        context->AddAttribute(std::move(value));
      } else {
        good = false;
      }
    }
  }
  return good;
}

bool AttributeReader::ReadDefault(const AttributeDef& def, Scope* scope, const Node& step,
                                  AttributeValue* value) {
  switch (def.kind) {
    case AttributeKind::kFlag:
      value->flag = def.initial == "true";
      return true;
    case AttributeKind::kWord:
      value->word = def.initial;
      return true;
    case AttributeKind::kValue:
      return ReadValue(def.initial, PlaceOf(step), scope, value);
    case AttributeKind::kInitializer:
      value->initializer = StepContext::Normal(options_.init_std);
      return true;
    default:
      break;
  }
  const auto none = [](std::string_view name) -> absl::StatusOr<std::int64_t> {
    return Internal("a default names the dim {}", name);
  };
  const absl::StatusOr<double> number = EvaluateReal(def.initial, none);
  ENGINE_CHECK(number.ok(), "the default of {}: {}", def.name, Message(number.status()));
  value->number = *number;
  value->integer = static_cast<std::int64_t>(*number);
  return true;
}

bool AttributeReader::ReadOne(const Node& node, Scope* scope, AttributeValue* value) {
  const AttributeDef& def = *value->def;
  switch (def.kind) {
    case AttributeKind::kInteger:
    case AttributeKind::kNumber:
      return ReadNumber(node, scope, value);
    case AttributeKind::kFlag:
      value->flag = node.boolean;
      return node.kind == Node::Kind::kBoolean ||
             Fail(node, fmt::format("{} is true or false, not {}", def.name, Describe(node)));
    case AttributeKind::kWord:
      return ReadWord(node, value);
    case AttributeKind::kShape:
      return ReadSizes(node, scope, value);
    case AttributeKind::kInitializer:
      return ReadInitializer(node, scope, value);
    case AttributeKind::kValue:
      if (!node.is_string())
        return Fail(node, fmt::format("{} is the name of a value, not {}", def.name, Describe(node)));
      return ReadValue(node.string, node, scope, value);
    case AttributeKind::kParameter:
      return ReadParameter(node, value);
    case AttributeKind::kRotary:
      return ReadRotary(node, scope, value);
    case AttributeKind::kParts:
      return ReadParts(node, scope, value);
    case AttributeKind::kNumbers:
      return ReadNumbers(node, scope, value);
    case AttributeKind::kTable:
    case AttributeKind::kNames:
      break;
  }
  return true;
}

bool AttributeReader::ReadNumber(const Node& node, Scope* scope, AttributeValue* value) {
  const AttributeDef& def = *value->def;
  absl::Status status;
  if (def.kind == AttributeKind::kInteger) {
    const absl::StatusOr<std::int64_t> integer = scope->dims->Integer(node);
    status = integer.status();
    value->integer = integer.value_or(0);
    value->number = static_cast<double>(value->integer);
  } else {
    const absl::StatusOr<double> number = scope->dims->Real(node);
    status = number.status();
    value->number = number.value_or(0);
  }
  if (!status.ok()) return Fail(node, fmt::format("{}: {}", def.name, Message(status)));
  if (InRange(def, value->number)) return true;
  return Fail(node, fmt::format("{} is {}, and must be {}", def.name, value->number, RangeText(def)));
}

bool AttributeReader::ReadNumbers(const Node& node, Scope* scope, AttributeValue* value) {
  if (node.kind != Node::Kind::kArray)
    return Fail(node, fmt::format("{} is a list of numbers, not {}", value->def->name, Describe(node)));
  for (const Node& item : node.items) {
    const absl::StatusOr<double> number = scope->dims->Real(item);
    if (!number.ok()) return Fail(item, fmt::format("{}: {}", value->def->name, Message(number.status())));
    value->numbers.push_back(*number);
  }
  return true;
}

bool AttributeReader::ReadWord(const Node& node, AttributeValue* value) {
  const AttributeDef& def = *value->def;
  const std::vector<std::string> words = Strings(def.words);
  value->word = node.string;
  if (node.is_string() && std::find(words.begin(), words.end(), node.string) != words.end()) return true;
  return Fail(node, fmt::format("{} is one of {}, not {}", def.name, fmt::join(words, ", "), Describe(node)),
              NearestWord(node.string, words).empty() ? "" : NearestHint(node.string, words));
}

bool AttributeReader::ReadSizes(const Node& node, Scope* scope, AttributeValue* value) {
  const absl::StatusOr<Sizes> sizes = scope->dims->SizesOf(node);
  if (!sizes.ok()) return Fail(node, fmt::format("{}: {}", value->def->name, Message(sizes.status())));
  value->sizes = *sizes;
  return true;
}

bool AttributeReader::ReadParts(const Node& node, Scope* scope, AttributeValue* value) {
  if (node.kind != Node::Kind::kTable || node.entries.empty()) {
    return Fail(node, fmt::format("parts is a table of shapes by name, not {}", Describe(node)),
                "parts = { u = [\"F\"], g = [\"F\"] }");
  }
  for (const Entry& part : node.entries) {
    const absl::StatusOr<Sizes> sizes = scope->dims->SizesOf(part.value);
    if (!sizes.ok()) return Fail(part.value, fmt::format("{}: {}", part.key, Message(sizes.status())));
    value->parts.push_back({part.key, *sizes});
  }
  return true;
}

bool AttributeReader::ReadInitializer(const Node& node, Scope* scope, AttributeValue* value) {
  if (!node.is_string()) {
    const absl::StatusOr<double> std = scope->dims->Real(node);
    if (!std.ok() || !(*std >= 0 && *std <= 10))
      return Fail(node, fmt::format("init is a standard deviation from 0 to 10, or one of {}, not {}",
                                    fmt::join(kInitializerWords, ", "), Describe(node)));
    value->initializer = StepContext::Normal(*std);
    return true;
  }
  if (node.string == "branch") {
    int branches = 0;
    for (const Scope* at = scope; at != nullptr && branches == 0; at = at->outer) branches = at->branches;
    if (branches == 0)
      return Fail(node, "init = \"branch\" counts the branches of a stack, and this step is in none",
                  "init = \"normal\"");
    value->initializer = StepContext::Normal(options_.init_std / std::sqrt(static_cast<double>(branches)));
    return true;
  }
  if (node.string == "normal") value->initializer = StepContext::Normal(options_.init_std);
  if (node.string == "zeros") value->initializer = StepContext::Zeros();
  if (node.string == "ones") value->initializer = StepContext::Ones();
  const std::vector<std::string> words = Strings(kInitializerWords);
  return std::find(words.begin(), words.end(), node.string) != words.end() ||
         Fail(node,
              fmt::format("init is a standard deviation, or one of {}, not {}", fmt::join(words, ", "),
                          Describe(node)),
              NearestWord(node.string, words).empty() ? "" : NearestHint(node.string, words));
}

bool AttributeReader::ReadValue(std::string_view name, const Node& at, Scope* scope, AttributeValue* value) {
  NamedValue* found = scope->Find(name);
  if (found == nullptr) {
    return Fail(at, fmt::format("there is no value '{}' for {} here", recipe::Shown(name), value->def->name),
                NearestHint(name, scope->Names()));
  }
  found->read = true;
  value->value = found->value;
  return found->value != graph::kNoValue;
}

bool AttributeReader::ReadParameter(const Node& node, AttributeValue* value) {
  std::vector<std::string> names;
  if (node.is_string()) {
    if (const auto found = parameters_.by_name.find(node.string); found != parameters_.by_name.end()) {
      value->value = found->second.value;
      return true;
    }
    for (const auto& [name, made] : parameters_.by_name) names.push_back(name);
    std::sort(names.begin(), names.end());
  }
  return Fail(node,
              fmt::format("{} is the name of a parameter that a step before has made, not {}",
                          value->def->name, Describe(node)),
              NearestHint(node.string, names));
}

bool AttributeReader::ReadRotary(const Node& node, Scope* scope, AttributeValue* value) {
  if (node.is_string() && node.string == "none") return true;
  const Node* table = rotary_ == nullptr || !node.is_string() ? nullptr : rotary_->Find(node.string);
  if (table == nullptr) {
    std::vector<std::string> names = {"none"};
    if (rotary_ != nullptr) {
      for (const Entry& entry : rotary_->entries) names.push_back(entry.key);
    }
    return Fail(node, fmt::format("there is no rotary table {}", Named(node)),
                names.size() == 1 ? "[model] rotary.rope = { dim = \"E\", base = 1e4 } makes one"
                                  : NearestHint(node.string, names));
  }
  static const ModuleDef rows{.name = "a rotary table", .doc = "", .attributes = RotaryKeys()};
  graph::Graph unused;
  ParameterTable none;
  StepContext keys(&unused, &none, options_, diagnostics_, *table, node.string);
  const bool is_table = table->kind == Node::Kind::kTable;
  if (!is_table)
    return Fail(*table, fmt::format("a rotary table, not {}", Describe(*table)),
                "{ dim = \"E\", base = 1e4 }");
  if (!Read(*table, rows, scope, &keys)) return false;
  const absl::StatusOr<Rotary> rotary = RotaryOf(keys);
  if (!rotary.ok()) return false;
  value->rotary = *rotary;
  value->rotary.table = table;
  return true;
}

}  // namespace engine::model

#include "engine/recipe/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "engine/base/status.h"
#include "engine/recipe/field_table.h"

namespace engine::recipe {
namespace {

template <typename T>
std::string ScalarToToml(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return QuoteToml(value);
  } else if constexpr (std::is_same_v<T, double>) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    return text;
  } else {
    return fmt::format("{}", value);
  }
}

template <typename T>
std::string ListToToml(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) {
    if (text.size() > 1) text += ", ";
    text += ScalarToToml(value);
  }
  return text + "]";
}

bool Holds(const Condition& condition, const Recipe& recipe) {
  const Field& field = *FindField(condition.key);
  const FieldValue value = Get(field, recipe);
  return condition.word.empty() ? value != DefaultOf(field) : value == FieldValue(condition.word);
}

}  // namespace

bool Range::Contains(double value) const {
  const bool above = min_excluded ? value > min : value >= min;
  const bool below = max_excluded ? value < max : value <= max;
  return above && below;
}

std::string Range::ToText() const {
  std::string text;
  if (std::isfinite(min)) text += fmt::format("{} {}", min_excluded ? "greater than" : "at least", min);
  if (std::isfinite(max)) {
    if (!text.empty()) text += " and ";
    text += fmt::format("{} {}", max_excluded ? "less than" : "at most", max);
  }
  return text;
}

std::string Field::type_name() const {
  struct Namer {
    std::string operator()(std::int64_t) const { return "integer"; }
    std::string operator()(double) const { return "number"; }
    std::string operator()(bool) const { return "boolean"; }
    std::string operator()(const std::string&) const { return "string"; }
    std::string operator()(const std::vector<std::int64_t>&) const { return "list of integers"; }
    std::string operator()(const std::vector<double>&) const { return "list of numbers"; }
    std::string operator()(const std::vector<std::string>&) const { return "list of strings"; }
  };
  return bytes ? "size in bytes" : std::visit(Namer{}, DefaultOf(*this));
}

std::string Condition::ToText(std::string_view quote) const {
  const FieldValue value = word.empty() ? DefaultOf(*FindField(key)) : FieldValue(word);
  return fmt::format("{0}{1}{0} is {2}{0}{3}{0}", quote, key, word.empty() ? "not " : "",
                     recipe::ToToml(value));
}

const Condition* Field::ConditionOn(std::string_view other) const {
  const auto found = std::find_if(only_where.begin(), only_where.end(),
                                  [&](const Condition& condition) { return condition.key == other; });
  return found == only_where.end() ? nullptr : &*found;
}

std::string Field::ConditionsText(std::string_view quote) const {
  std::string text;
  for (const Condition& condition : only_where)
    text += (text.empty() ? "Only where " : " and ") + condition.ToText(quote);
  return text.empty() ? "" : text + ".";
}

const std::vector<TableDoc>& Tables() {
  static const std::vector<TableDoc> tables = MakeTables();
  return tables;
}

const std::vector<Field>& Fields() {
  static const std::vector<Field> fields = MakeFields();
  return fields;
}

std::string_view CurrentKey(std::string_view key) {
  if (key == "start.checkpoint") return "training.weights_from";
  if (key == "start.upcycle") return "training.upcycle";
  return key == "start" ? "training" : key;
}

const Field* FindField(std::string_view key) {
  for (const Field& field : Fields()) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

FieldValue Get(const Field& field, const Recipe& recipe) {
  // The table has one accessor a field, and it needs a mutable recipe; nothing is written through it here.
  const FieldPointer pointer = field.member(const_cast<Recipe&>(recipe));
  return std::visit([](const auto* member) { return FieldValue(*member); }, pointer);
}

void Set(const Field& field, const FieldValue& value, Recipe* recipe) {
  const auto assign = [&](auto* member) {
    using T = std::remove_pointer_t<decltype(member)>;
    ENGINE_CHECK(std::holds_alternative<T>(value), "{} is set to a value of another type", field.key);
    *member = std::get<T>(value);
  };
  std::visit(assign, field.member(*recipe));
}

FieldValue DefaultOf(const Field& field) { return Get(field, Recipe{}); }

std::string QuoteToml(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

const Condition* UnmetCondition(const Field& field, const Recipe& recipe) {
  const auto unmet = std::find_if_not(field.only_where.begin(), field.only_where.end(),
                                      [&](const Condition& condition) { return Holds(condition, recipe); });
  return unmet == field.only_where.end() ? nullptr : &*unmet;
}

bool Applies(const Field& field, const Recipe& recipe) { return UnmetCondition(field, recipe) == nullptr; }

std::string ToToml(const FieldValue& value) {
  struct Printer {
    std::string operator()(std::int64_t v) const { return ScalarToToml(v); }
    std::string operator()(double v) const { return ScalarToToml(v); }
    std::string operator()(bool v) const { return ScalarToToml(v); }
    std::string operator()(const std::string& v) const { return ScalarToToml(v); }
    std::string operator()(const std::vector<std::int64_t>& v) const { return ListToToml(v); }
    std::string operator()(const std::vector<double>& v) const { return ListToToml(v); }
    std::string operator()(const std::vector<std::string>& v) const { return ListToToml(v); }
  };
  return std::visit(Printer{}, value);
}

}  // namespace engine::recipe

#include "engine/hf/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/recipe/fields.h"

namespace engine::hf {
namespace {

using Tree = nlohmann::ordered_json;

std::string KeyToml(std::string_view key) {
  const bool bare = std::all_of(key.begin(), key.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  });
  return bare ? std::string(key) : fmt::format("\"{}\"", key);
}

// Of tables within a table, on one line.
std::string InlineOf(const Tree& tree) {
  if (tree.is_string()) return tree.get<std::string>();
  std::string text;
  for (const auto& [key, value] : tree.items())
    text += fmt::format("{}{} = {}", text.empty() ? " " : ", ", KeyToml(key), InlineOf(value));
  return "{" + text + " }";
}

// A line for each of a table's entries: "rotary.rope = { … }".
std::string LinesOf(const std::string& prefix, const Tree& table) {
  std::string lines;
  for (const auto& [key, value] : table.items())
    lines += fmt::format("{}.{} = {}\n", prefix, KeyToml(key), InlineOf(value));
  return lines;
}

}  // namespace

void Draft::SetDim(std::string_view name, std::int64_t value) {
  if (!dims_.contains(name)) dim_order_.emplace_back(name);
  dims_[std::string(name)] = value;
}

void Draft::SetDim(std::string_view name, std::int64_t value, std::string expression) {
  SetDim(name, value);
  expressions_[std::string(name)] = std::move(expression);
}

std::optional<std::int64_t> Draft::Dim(std::string_view name) const {
  const auto found = dims_.find(name);
  if (found == dims_.end()) return std::nullopt;
  return found->second;
}

void Draft::Set(std::string_view place, std::int64_t value) { SetToml(place, fmt::format("{}", value)); }
void Draft::Set(std::string_view place, double value) {
  SetToml(place, recipe::ToToml(recipe::FieldValue(value)));
}
void Draft::SetFlag(std::string_view place, bool value) { SetToml(place, value ? "true" : "false"); }
void Draft::SetWord(std::string_view place, std::string_view value) {
  SetToml(place, fmt::format("\"{}\"", value));
}

void Draft::SetToml(std::string_view place, std::string value) {
  Tree* at = &places_;
  while (true) {
    const std::size_t slash = place.find('/');
    at = &(*at)[std::string(place.substr(0, slash))];
    if (slash == std::string_view::npos) break;
    place.remove_prefix(slash + 1);
  }
  *at = std::move(value);
}

std::string Draft::Text() const {
  std::string dims;
  for (const std::string& name : dim_order_) {
    const auto expression = expressions_.find(name);
    dims += fmt::format("{}{} = {}", dims.empty() ? "" : ", ", name,
                        expression == expressions_.end() ? fmt::format("{}", dims_.at(name))
                                                         : fmt::format("\"{}\"", expression->second));
  }
  std::string text = fmt::format("extends = \"{}\"\n\n[model]\ndims = {{ {} }}\n", blocks_, dims);
  std::string blocks;
  for (const auto& [key, value] : places_.items()) {
    if (key == "block") {
      for (const auto& [name, steps] : value.items())
        blocks += fmt::format("\n[block.{}]\n{}", KeyToml(name), LinesOf("steps", steps));
    } else if (value.is_string()) {
      text += fmt::format("{} = {}\n", key, value.get<std::string>());
    } else {
      text += LinesOf(key, value);
    }
  }
  for (const std::string& edit : edits_) text += "\n" + edit;
  return text + blocks;
}

}  // namespace engine::hf

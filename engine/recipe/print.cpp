#include "engine/recipe/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <variant>

#include "engine/base/hash.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/text.h"

namespace engine::recipe {
namespace {

const Provenance& ProvenanceOf(const Recipe& recipe, const std::string& key) {
  static const Provenance unknown;
  const auto found = recipe.provenance.find(key);
  return found == recipe.provenance.end() ? unknown : found->second;
}

std::string OriginName(Provenance::Origin origin) {
  switch (origin) {
    case Provenance::Origin::kDefault:
      return "default";
    case Provenance::Origin::kFile:
      return "file";
    case Provenance::Origin::kSet:
      return "set";
  }
  return "default";
}

std::string Location(const Provenance& provenance) {
  if (provenance.origin == Provenance::Origin::kDefault) return "default";
  return fmt::format("{}:{}:{}", provenance.span.file, provenance.span.line, provenance.span.column);
}

using TextRowList = std::vector<std::pair<std::string, std::string>>;

TextRowList RowsOf(const Recipe& recipe) {
  return recipe.text == nullptr ? TextRowList{} : TextRows(*recipe.text);
}

// A comment may not hold control characters, and a file name may.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

std::string ToToml(const Recipe& recipe) {
  std::string text;
  for (const TableDoc& table : Tables()) {
    const auto is_said = [&](const Field& field) {
      return field.table() == table.name && Applies(field, recipe);
    };
    if (std::none_of(Fields().begin(), Fields().end(), is_said)) continue;
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table.name);
    for (const Field& field : Fields()) {
      if (!is_said(field)) continue;
      const std::string setting = fmt::format("{} = {}", field.name(), ToToml(Get(field, recipe)));
      text += fmt::format("{:<40}  # {}\n", setting, Printable(Location(ProvenanceOf(recipe, field.key))));
    }
    if (recipe.text != nullptr && table.name == "model") text += ModelLines(*recipe.text);
  }
  if (recipe.text != nullptr) text += TextTables(*recipe.text);
  return text;
}

std::string ToJson(const Recipe& recipe) {
  nlohmann::ordered_json json;
  for (const Field& field : Fields()) {
    const Provenance& provenance = ProvenanceOf(recipe, field.key);
    nlohmann::ordered_json& entry = json[field.key];
    std::visit([&](const auto& value) { entry["value"] = value; }, Get(field, recipe));
    entry["origin"] = OriginName(provenance.origin);
    if (provenance.origin != Provenance::Origin::kDefault) entry["location"] = Location(provenance);
  }
  for (const auto& [key, value] : RowsOf(recipe)) json[key]["value"] = value;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string OriginOf(const Recipe& recipe, const std::string& key) {
  const bool is_of_text = recipe.text != nullptr && !recipe.provenance.contains(key);
  if (const Node* node = is_of_text ? FindInText(*recipe.text, key) : nullptr;
      node != nullptr && node->source != nullptr)
    return Location({Provenance::Origin::kFile, node->source->Span(node->mark), ""});
  // Where nothing of it is said, the nearest key around it.
  std::string known = key;
  while (!recipe.provenance.contains(known) && known.find('.') != std::string::npos)
    known.resize(known.rfind('.'));
  return Location(ProvenanceOf(recipe, known));
}

std::string HashOfValues(const Recipe& recipe) {
  std::string text;
  for (const Field& field : Fields()) {
    const FieldValue value = Get(field, recipe);
    if (Applies(field, recipe) && value != DefaultOf(field)) text += field.key + " = " + ToToml(value) + "\n";
  }
  for (const auto& [key, value] : RowsOf(recipe)) text += fmt::format("{} = {}\n", key, value);
  return HashHex(text);
}

std::vector<Change> Diff(const Recipe& before, const Recipe& after) {
  std::vector<Change> changes;
  for (const Field& field : Fields()) {
    const FieldValue a = Get(field, before);
    const FieldValue b = Get(field, after);
    // What follows from steps differs with them.
    const bool is_said = Applies(field, before) || Applies(field, after);
    if (is_said && a != b) changes.push_back({field.key, ToToml(a), ToToml(b)});
  }
  static const Node nothing;
  const Node& text_before = before.text != nullptr ? *before.text : nothing;
  const Node& text_after = after.text != nullptr ? *after.text : nothing;
  for (TextChange& change : TextChanges(text_before, text_after))
    changes.push_back({std::move(change.key), std::move(change.before), std::move(change.after)});
  return changes;
}

}  // namespace engine::recipe

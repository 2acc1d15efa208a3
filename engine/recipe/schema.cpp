#include "engine/recipe/schema.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/recipe/fields.h"

namespace engine::recipe {
namespace {

using Json = nlohmann::ordered_json;

Json Number(double value, bool integer) {
  if (integer) return static_cast<std::int64_t>(value);
  return value;
}

void AddRange(const Range& range, bool integer, Json* json) {
  if (std::isfinite(range.min)) {
    (*json)[range.min_excluded ? "exclusiveMinimum" : "minimum"] = Number(range.min, integer);
  }
  if (std::isfinite(range.max)) {
    (*json)[range.max_excluded ? "exclusiveMaximum" : "maximum"] = Number(range.max, integer);
  }
}

template <typename T>
Json ScalarType(const Field& field) {
  Json json;
  if constexpr (std::is_same_v<T, bool>) {
    json["type"] = "boolean";
  } else if constexpr (std::is_same_v<T, std::string>) {
    json["type"] = "string";
    if (!field.words.empty()) json["enum"] = field.words;
  } else {
    constexpr bool kInteger = std::is_same_v<T, std::int64_t>;
    json["type"] = kInteger ? "integer" : "number";
    AddRange(field.range, kInteger, &json);
  }
  return json;
}

template <typename T>
Json Type(const Field& field, const T& /*sample*/) {
  Json json = ScalarType<T>(field);
  if (!field.bytes) return json;
  Json text;
  text["type"] = "string";
  text["pattern"] = "^[0-9]+(\\.[0-9]+)? *([KMGTP]i?)?B?$";
  Json either;
  either["anyOf"] = Json::array({json, text});
  return either;
}

template <typename T>
Json Type(const Field& field, const std::vector<T>& /*sample*/) {
  Json json;
  json["type"] = "array";
  json["items"] = ScalarType<T>(field);
  return json;
}

Json FieldSchema(const Field& field) {
  const FieldValue initial = DefaultOf(field);
  Json json = std::visit([&](const auto& sample) { return Type(field, sample); }, initial);
  std::string description = field.doc;
  if (!field.unit.empty()) description += " Unit: " + field.unit + ".";
  if (field.required) {
    description += " Required.";
  } else {
    std::visit([&](const auto& value) { json["default"] = value; }, initial);
  }
  json["description"] = description;
  return json;
}

Json EmptyTable(const std::string& description) {
  Json json;
  json["type"] = "object";
  json["description"] = description;
  json["additionalProperties"] = false;
  json["properties"] = Json::object();
  return json;
}

Json ExtendsSchema() {
  Json path;
  path["type"] = "string";
  Json list;
  list["type"] = "array";
  list["items"] = path;
  Json json;
  json["description"] =
      "Recipes that this one builds on, relative to this file; later ones override earlier ones, and this "
      "file "
      "overrides them all, key by key.";
  json["anyOf"] = Json::array({path, list});
  return json;
}

// The schema of a table of the recipe, "model.attention" inside "model".
Json* TableAt(Json* root, const std::string& name) {
  Json* table = root;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    table = &(*table)["properties"][name.substr(begin, end - begin)];
    begin = end + 1;
  }
  return table;
}

}  // namespace

std::string JsonSchema() {
  Json root;
  root["$schema"] = "http://json-schema.org/draft-07/schema#";
  root["title"] = "engine recipe";
  root.update(EmptyTable("A training recipe of engine."));
  root["properties"]["extends"] = ExtendsSchema();
  for (const TableDoc& table : Tables()) *TableAt(&root, table.name) = EmptyTable(table.doc);
  for (const Field& field : Fields()) {
    (*TableAt(&root, field.table()))["properties"][field.name()] = FieldSchema(field);
  }
  return root.dump(2) + "\n";
}

}  // namespace engine::recipe

#include "engine/recipe/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/recipe/fields.h"
#include "engine/recipe/study.h"

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
    if (!field.pattern.empty()) json["pattern"] = field.pattern;
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
  if (!field.only_where.empty()) description += " " + field.ConditionsText("");
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
      "Recipes that this one builds on, relative to this file, or engine:configs/… of those that come with "
      "the "
      "program; later ones override earlier ones, and this file overrides them all, key by key.";
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

// The tables of a recipe, with all their keys.
Json RecipeTables() {
  Json root = EmptyTable("A training recipe of engine.");
  for (const TableDoc& table : Tables()) *TableAt(&root, table.name) = EmptyTable(table.doc);
  for (const Field& field : Fields()) {
    (*TableAt(&root, field.table()))["properties"][field.name()] = FieldSchema(field);
  }
  return root;
}

Json TitledSchema(const char* title) {
  Json root;
  root["$schema"] = "http://json-schema.org/draft-07/schema#";
  root["title"] = title;
  return root;
}

Json ListOf(const Json& item) {
  Json list;
  list["type"] = "array";
  list["items"] = item;
  list["minItems"] = 1;
  return list;
}

// A table of [grid] for a table of recipes: each key has a list of values, and so may the table as a whole.
Json FactorTable(const Json& table, const std::string& path) {
  Json keys = EmptyTable(table["description"]);
  for (const auto& [name, value] : table["properties"].items()) {
    const bool is_table = value.contains("properties");
    const std::string at = fmt::format("{}/properties/{}", path, name);
    keys["properties"][name] = is_table ? FactorTable(value, at) : ListOf({{"$ref", at}});
  }
  Json either;
  either["anyOf"] = Json::array({keys, ListOf({{"$ref", path}})});
  return either;
}

Json StudyHeadSchema() {
  Json head = EmptyTable("What is compared, and by which number.");
  Json& keys = head["properties"];
  keys["base"] = {{"type", "string"},
                  {"description", "The recipe that is varied, relative to this file. Required."}};
  keys["title"] = {{"type", "string"}, {"description", "Of the page; else the file's name."}};
  keys["seeds"] = ListOf({{"$ref", "#/definitions/recipe/properties/training/properties/seed"}});
  keys["seeds"]["uniqueItems"] = true;
  keys["seeds"]["description"] = "training.seed of the runs of each variant; else the base's alone.";
  keys["metric"] = {
      {"type", "string"},
      {"enum", {"validation_loss", "train_loss"}},
      {"default", "validation_loss"},
      {"description",
       "The number that decides: the last validation loss, or the mean of the last iterations."}};
  keys["metric_iterations"] = {{"type", "integer"},
                               {"minimum", 1},
                               {"default", Study{}.metric_iterations},
                               {"description", "Of train_loss: how many last iterations."}};
  head["required"] = {"base"};
  return head;
}

}  // namespace

std::string JsonSchema() {
  Json root = TitledSchema("engine recipe");
  root.update(RecipeTables());
  // Behind `extends`, which comes first.
  Json properties = {{"extends", ExtendsSchema()}};
  properties.update(root["properties"]);
  root["properties"] = properties;
  return root.dump(2) + "\n";
}

std::string StudySchema() {
  const Json recipe = RecipeTables();
  Json variant = {{"$ref", "#/definitions/recipe"}};
  Json root = TitledSchema("engine study");
  root.update(EmptyTable("Variants of a recipe, to be trained and compared by engine ablate."));
  Json& keys = root["properties"];
  keys["study"] = StudyHeadSchema();
  keys["variants"] = {{"type", "object"},
                      {"description", "Variants by name: keys of a recipe, which override the base's."},
                      {"minProperties", 1},
                      {"propertyNames", {{"pattern", "^[A-Za-z0-9_+=,-][A-Za-z0-9_+=,.-]{0,99}$"}}},
                      {"additionalProperties", variant}};
  Json factors = EmptyTable("");
  for (const auto& [name, table] : recipe["properties"].items()) {
    factors["properties"][name] = FactorTable(table, "#/definitions/recipe/properties/" + name);
  }
  factors["minProperties"] = 1;
  factors["description"] = "Keys of a recipe, each with a list of values: all combinations.";
  keys["grid"] = factors;
  factors["description"] = "Keys of a recipe, each with a list of values: the base, and each value alone.";
  keys["one_at_a_time"] = factors;
  root["required"] = {"study"};
  root["oneOf"] = Json::array();
  for (const char* form : {"variants", "grid", "one_at_a_time"})
    root["oneOf"].push_back({{"required", {form}}});
  root["definitions"]["recipe"] = recipe;
  return root.dump(2) + "\n";
}

}  // namespace engine::recipe

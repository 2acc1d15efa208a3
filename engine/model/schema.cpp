#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/model/groups.h"
#include "engine/model/reference.h"
#include "engine/recipe/schema.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

using Json = nlohmann::ordered_json;

Json Typed(const char* type) { return {{"type", type}}; }
Json Either(std::initializer_list<Json> of) { return {{"anyOf", Json(of)}}; }

Json ShapeSchema() {
  const Json dim = Either({Typed("integer"), Typed("string")});
  return Either({Typed("integer"), Typed("string"), {{"type", "array"}, {"items", dim}, {"minItems", 1}}});
}

Json AttributeSchema(const AttributeDef& def) {
  const auto number = [&](const char* type) {
    Json json = Typed(type);
    if (!std::isinf(def.min)) json[def.open ? "exclusiveMinimum" : "minimum"] = def.min;
    if (!std::isinf(def.max)) json[def.open || def.open_end ? "exclusiveMaximum" : "maximum"] = def.max;
    return json;
  };
  const Json variable = {{"type", "string"}, {"pattern", "^\\$"}};
  Json json;
  switch (def.kind) {
    case AttributeKind::kInteger:
      json = Either({number("integer"), Typed("string")});
      break;
    case AttributeKind::kNumber:
      json = Either({number("number"), Typed("string")});
      break;
    case AttributeKind::kFlag:
      json = Either({Typed("boolean"), variable});
      break;
    case AttributeKind::kWord:
      json = def.words.empty() ? Typed("string") : Either({{{"enum", def.words}}, variable});
      break;
    case AttributeKind::kShape:
      json = ShapeSchema();
      break;
    case AttributeKind::kInitializer:
      json = Either({Typed("number"), {{"enum", kInitializerWords}}, variable});
      break;
    case AttributeKind::kValue:
    case AttributeKind::kParameter:
    case AttributeKind::kRotary:
      json = Typed("string");
      break;
    case AttributeKind::kParts:
      json = {{"type", "object"}, {"additionalProperties", ShapeSchema()}};
      break;
    case AttributeKind::kNumbers:
      json = Either({{{"type", "array"}, {"items", Typed("number")}}, variable});
      break;
    case AttributeKind::kTable:
      json = Typed("object");
      break;
    case AttributeKind::kNames:
      json = {{"type", "array"}, {"items", Typed("string")}, {"minItems", 1}};
      break;
  }
  json["description"] = def.doc;
  return json;
}

Json StepSchema(const ModuleDef& module) {
  Json step = Typed("object");
  step["description"] = module.doc;
  step["required"] = {"do"};
  step["additionalProperties"] = false;
  Json& keys = step["properties"];
  const Json names = Either({Typed("string"), {{"type", "array"}, {"items", Typed("string")}}});
  for (const StepKey& key : StepKeys()) {
    keys[std::string(key.name)] = key.name == "as" ? Typed("string") : names;
    keys[std::string(key.name)]["description"] = key.doc;
  }
  keys["do"] = {{"const", module.name}, {"description", module.doc}};
  if (module.emit == nullptr)
    keys["of"] = Either({Typed("string"), {{"type", "object"}, {"additionalProperties", Typed("string")}}});
  for (const AttributeDef& def : module.attributes) {
    keys[std::string(def.name)] = AttributeSchema(def);
    if (def.required) step["required"].push_back(def.name);
  }
  return step;
}

// A list of steps, or changes of steps by name.
Json StepsSchema() {
  return Either({{{"type", "array"}, {"items", {{"$ref", "#/definitions/step"}}}}, Typed("object")});
}

Json RotarySchema() {
  Json table = Typed("object");
  table["additionalProperties"] = false;
  for (const AttributeDef& def : RotaryKeys())
    table["properties"][std::string(def.name)] = AttributeSchema(def);
  return {{"type", "object"}, {"additionalProperties", table}};
}

Json BlockSchema() {
  Json block = Typed("object");
  block["additionalProperties"] = false;
  block["properties"] = {
      {"steps", StepsSchema()},
      {"like", {{"type", "string"}, {"description", "The block that it is made of."}}},
      {"without", {{"type", "array"}, {"items", Typed("string")}}},
      {"gives", {{"type", "string"}, {"description", "The value that it gives; else x."}}}};
  return {{"type", "object"}, {"additionalProperties", block}};
}

Json EditsSchema() {
  const Json step = {{"$ref", "#/definitions/step"}};
  Json edit = Typed("object");
  edit["additionalProperties"] = false;
  edit["required"] = {"step"};
  edit["properties"] = {{"step", Typed("string")},
                        {"block", Typed("string")},
                        {"with", Either({step, {{"type", "array"}, {"items", step}}})}};
  return {{"type", "array"}, {"items", edit}};
}

Json GroupsSchema() {
  Json group = Typed("object");
  group["additionalProperties"] = false;
  group["required"] = {"match"};
  for (const AttributeDef& def : GroupKeys())
    group["properties"][std::string(def.name)] = AttributeSchema(def);
  group["properties"]["match"] = Either({Typed("string"), {{"type", "array"}, {"items", Typed("string")}}});
  return {{"type", "array"}, {"items", group}};
}

Json SchemaOf(const recipe::TextKey& key) {
  if (key.edits) return EditsSchema();
  if (key.key == "model.main") return StepsSchema();
  if (key.key == "block") return BlockSchema();
  if (key.key == "model.rotary") return RotarySchema();
  if (key.key == "model.dims")
    return {{"type", "object"}, {"additionalProperties", Either({Typed("integer"), Typed("string")})}};
  if (key.key == "optimizer.group") return GroupsSchema();
  return {{"type", "object"}, {"additionalProperties", Typed("string")}};
}

// Adds the keys of texts to the tables of a recipe; `as` makes a key's schema.
template <typename Make>
void AddTextKeys(Json* tables, const Make& make) {
  for (const recipe::TextKey& key : recipe::TextKeys()) {
    const std::string name(key.key);
    const std::size_t dot = name.find('.');
    Json& keys = dot == std::string::npos ? (*tables)["properties"]
                                          : (*tables)["properties"][name.substr(0, dot)]["properties"];
    Json json = make(key);
    json["description"] = key.doc;
    keys[dot == std::string::npos ? name : name.substr(dot + 1)] = json;
  }
}

void AddSteps(Json* root) {
  Json steps = Json::array();
  for (const auto* list : {&Structures(), &Modules()}) {
    for (const ModuleDef* module : *list) steps.push_back(StepSchema(*module));
  }
  (*root)["definitions"]["step"] = {{"anyOf", steps}};
}

}  // namespace

std::string RecipeSchema() {
  Json root = Json::parse(recipe::JsonSchema());
  AddTextKeys(&root, SchemaOf);
  AddSteps(&root);
  return root.dump(2) + "\n";
}

std::string StudySchema() {
  Json root = Json::parse(recipe::StudySchema());
  AddTextKeys(&root["definitions"]["recipe"], SchemaOf);
  AddSteps(&root);
  return root.dump(2) + "\n";
}

}  // namespace engine::model

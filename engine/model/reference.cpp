#include "engine/model/reference.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/status.h"
#include "engine/model/groups.h"

namespace engine::model {
namespace {

constexpr const char* kIntroduction = R"(# Modules

This page is written by `engine modules --page` from the table of modules, and a test fails when they differ.
[custom-models.md](custom-models.md) shows how models are made of them.

A **step** is a table on one line: `{ do = "linear", as = "proj", of = "core", out = ["D"] }`. Every step has these keys:

)";

const char* TypeName(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInteger:
      return "integer";
    case AttributeKind::kNumber:
      return "number";
    case AttributeKind::kFlag:
      return "boolean";
    case AttributeKind::kWord:
      return "word";
    case AttributeKind::kShape:
      return "shape";
    case AttributeKind::kInitializer:
      return "initializer";
    case AttributeKind::kValue:
      return "value";
    case AttributeKind::kParameter:
      return "parameter";
    case AttributeKind::kRotary:
      return "rotary table";
    case AttributeKind::kParts:
      return "shapes by name";
    case AttributeKind::kNumbers:
      return "list of numbers";
    case AttributeKind::kTable:
      return "table";
    case AttributeKind::kNames:
      return "list of names";
  }
  return "";
}

constexpr const char* kTypes = R"(
## What attributes are

| type | |
|---|---|
| integer, number | or an expression over dims: `"H/K+2"`, `"D**-0.5"`; `/` of integers leaves no remainder, `//` rounds down |
| shape | a list of dims, `["K", "H/K+2", "E"]`, or one: names, integers and expressions |
| initializer | a standard deviation; `"normal"`, which is `model.init_std`; `"branch"`, that divided by √n for n branches that join the stream of the stack; `"zeros"`; `"ones"` |
| value | the name of what a step before has given, or of an input |
| parameter | its whole name: `"embedding.tokens"` |
| rotary table | one of [model.rotary], or `"none"` |

In a block any of them may be `"$name"`: the stack or call that the block is in gives its value (`set`, `cycle`, `ramp`).
)";

std::string Range(const AttributeDef& def) {
  if (!def.words.empty()) return fmt::format("{}", fmt::join(def.words, ", "));
  return RangeText(def);
}

std::string Initial(const AttributeDef& def) { return def.required ? "required" : std::string(def.initial); }

std::string Rows(const std::vector<AttributeDef>& attributes) {
  std::string text = "| attribute | type | default | range | |\n|---|---|---|---|---|\n";
  for (const AttributeDef& def : attributes) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", def.name, TypeName(def.kind), Initial(def),
                        Range(def), def.doc);
  }
  return text;
}

std::string Section(const ModuleDef& module) {
  std::string text = fmt::format("\n## {}\n\n{}\n\n", module.name, module.doc);
  if (!module.reads.empty()) text += fmt::format("- Reads {}.\n", module.reads);
  text += fmt::format("- Gives {}.\n", module.gives.empty() ? "one value" : module.gives);
  if (!module.parameters.empty()) text += fmt::format("- Parameters: {}.\n", module.parameters);
  if (!module.attributes.empty()) text += "\n" + Rows(module.attributes);
  return text;
}

}  // namespace

std::string ModulesPage() {
  std::string text = kIntroduction;
  text += "| key | |\n|---|---|\n";
  for (const StepKey& key : StepKeys()) text += fmt::format("| `{}` | {} |\n", key.name, key.doc);
  text += kTypes;
  for (const ModuleDef* module : Structures()) text += Section(*module);
  for (const ModuleDef* module : Modules()) text += Section(*module);
  text +=
      "\n## Groups of the optimizer\n\n`[[optimizer.group]]`; where several say a key of one parameter, the "
      "last one counts\n\n" +
      Rows(GroupKeys());
  text += "\n## Rotary tables\n\n`[model] rotary.NAME = { … }`\n\n" + Rows(RotaryKeys());
  return text;
}

std::string ModulesList() {
  std::string text;
  for (const auto* list : {&Structures(), &Modules()}) {
    for (const ModuleDef* module : *list) {
      const std::string_view doc = module->doc;
      text += fmt::format("{:<16} {}\n", module->name, doc.substr(0, doc.find(". ")));
    }
  }
  return text;
}

std::string ModuleText(const ModuleDef& module) {
  std::string text = fmt::format("{}\n\n{}\n\n", module.name, module.doc);
  if (!module.reads.empty()) text += fmt::format("reads       {}\n", module.reads);
  text += fmt::format("gives       {}\n", module.gives.empty() ? "one value" : module.gives);
  if (!module.parameters.empty()) text += fmt::format("parameters  {}\n", module.parameters);
  if (!module.attributes.empty()) text += "\nattributes\n";
  for (const AttributeDef& def : module.attributes) {
    std::string facts = TypeName(def.kind);
    if (const std::string range = Range(def); !range.empty()) facts += ", " + range;
    if (const std::string initial = Initial(def); !initial.empty())
      facts += def.required ? ", required" : ", default " + initial;
    text += fmt::format("  {:<12} {}\n               ({})\n", def.name, def.doc, facts);
  }
  return text;
}

}  // namespace engine::model

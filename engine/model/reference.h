// What `engine modules` prints, docs/modules.md, and the steps in the JSON Schemas: all from the table of modules.
#pragma once

#include <string>

#include "engine/model/module.h"

namespace engine::model {

std::string ModulesPage();                        // docs/modules.md
std::string ModulesList();                        // a line a module
std::string ModuleText(const ModuleDef& module);  // all of one

// recipe/schema.h, with the keys of texts: every module's attributes, blocks, dims, rotary tables, the optimizer's groups.
std::string RecipeSchema();
std::string StudySchema();

}  // namespace engine::model

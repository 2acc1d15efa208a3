#include <algorithm>

#include "engine/model/modules/modules.h"

namespace engine::model {

const std::vector<const ModuleDef*>& Modules() {
  static const std::vector<const ModuleDef*> modules = {
#define MODULE(name) &k##name##Module,
#include "engine/model/modules/modules.list"
#undef MODULE
  };
  return modules;
}

const ModuleDef* FindModule(std::string_view name) {
  for (const auto* list : {&Modules(), &Structures()}) {
    const auto found = std::find_if(list->begin(), list->end(),
                                    [&](const ModuleDef* module) { return module->name == name; });
    if (found != list->end()) return *found;
  }
  return nullptr;
}

}  // namespace engine::model

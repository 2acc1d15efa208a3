// The definitions of all modules (modules.list).
#pragma once

#include "engine/model/module.h"
#include "engine/model/step_context.h"

namespace engine::model {

#define MODULE(name) extern const ModuleDef k##name##Module;
#include "engine/model/modules/modules.list"
#undef MODULE

}  // namespace engine::model

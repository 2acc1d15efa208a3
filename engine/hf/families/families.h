// The definitions of all families (families.list).
#pragma once

#include "engine/hf/family_def.h"

namespace engine::hf {

#define FAMILY(name) Family name##Family();
#include "engine/hf/families/families.list"
#undef FAMILY

}  // namespace engine::hf

// The rows themselves (internal to recipe/fields.cpp, which caches them).
#pragma once

#include <vector>

#include "engine/recipe/fields.h"

namespace engine::recipe {

std::vector<TableDoc> MakeTables();
std::vector<Field> MakeFields();

}  // namespace engine::recipe

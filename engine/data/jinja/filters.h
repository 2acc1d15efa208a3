// The tables of filters.
#pragma once

#include <vector>

#include "engine/data/jinja/interpreter.h"

namespace engine::jinja {

const std::vector<Builtin>& ListFilters();
const std::vector<Builtin>& NumberFilters();

// What filters that give items one by one give: it can be gone through once.
Value Generated(Interpreter& in, Place place, std::vector<Value> items);

}  // namespace engine::jinja

// The parameters of a model that is being built, by name.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <string>

#include "engine/graph/graph.h"
#include "engine/recipe/document.h"

namespace engine::model {

struct MadeParameter {
  graph::ValueId value = graph::kNoValue;
  const recipe::Node* step = nullptr;  // that made it
};

struct ParameterTable {
  absl::flat_hash_map<std::string, MadeParameter> by_name;
};

}  // namespace engine::model

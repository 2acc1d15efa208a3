// Which step of a text each node of its graph comes from, and where the text says the step's attributes: for those who look
// at a graph and have to point at its text.
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/recipe/document.h"
#include "engine/recipe/source.h"

namespace engine::model {

struct AttributeValue;

// It keeps the sources that it points into, not the text.
struct Origin {
  std::string step;     // what the text calls it, "core", in whatever layer
  recipe::Place place;  // of the step
  // Of the attributes that the text gives, where their values stand: of "$window", where the stack says it. The keys of the
  // rotary table that the step goes by count as its own.
  std::vector<std::pair<std::string, recipe::Place>> attributes;

  // Of an attribute that is left out, the step's place.
  const recipe::Place& PlaceOf(std::string_view attribute) const;
};

// By node of the graph.
using Origins = std::vector<std::shared_ptr<const Origin>>;

// Of the nodes up to `nodes` that have none yet.
void AddOrigin(const recipe::Node& step, const absl::InlinedVector<AttributeValue, 4>& attributes,
               std::size_t nodes, Origins* origins);

}  // namespace engine::model

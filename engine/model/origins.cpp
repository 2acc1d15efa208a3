#include "engine/model/origins.h"

#include <algorithm>

#include "engine/model/module.h"
#include "engine/model/step_context.h"
#include "engine/recipe/text.h"

namespace engine::model {

const recipe::Place& Origin::PlaceOf(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& known) { return known.first == attribute; });
  return found == attributes.end() ? place : found->second;
}

void AddOrigin(const recipe::Node& step, const absl::InlinedVector<AttributeValue, 4>& attributes,
               std::size_t nodes, Origins* origins) {
  const auto place_of = [](const recipe::Node& node) { return recipe::Place{node.source, node.mark}; };
  auto origin = std::make_shared<Origin>();
  origin->step = recipe::StepName(step);
  origin->place = place_of(PlaceOf(step));
  for (const AttributeValue& value : attributes) {
    if (value.node != nullptr) origin->attributes.emplace_back(value.def->name, place_of(*value.node));
    if (value.rotary.table == nullptr) continue;
    for (const recipe::Entry& entry : value.rotary.table->entries)
      origin->attributes.emplace_back(entry.key, place_of(entry.value));
  }
  origins->resize(nodes, origin);
}

}  // namespace engine::model

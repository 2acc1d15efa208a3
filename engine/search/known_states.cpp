#include "engine/search/known_states.h"

#include <cstddef>

namespace engine::search {

std::vector<const StageStates*> KnownStates::Of(const recipe::Recipe& recipe,
                                                const compile::FlatExchange& exchange,
                                                const std::vector<StageShape>& shapes,
                                                ModelParameters* parameters) {
  std::vector<const StageStates*> states;
  for (size_t s = 0; s < shapes.size(); ++s) {
    if (s > 0 && shapes[s] == shapes[s - 1]) {
      states.push_back(states.back());
      continue;
    }
    const auto [known, fresh] = known_.try_emplace(StatesKey::Of(recipe, exchange, shapes[s]));
    if (fresh) {
      known->second = std::make_unique<const StageStates>(
          StatesOfStage(recipe, exchange, shapes[s], profile_, parameters));
    }
    states.push_back(known->second.get());
  }
  return states;
}

}  // namespace engine::search

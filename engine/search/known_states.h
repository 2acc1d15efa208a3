// States of the stages of many layouts (search/stage_states.h), each made once.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/compile/flat_exchange.h"
#include "engine/plan/device_profile.h"
#include "engine/recipe/recipe.h"
#include "engine/search/fold_keys.h"
#include "engine/search/stage_states.h"

namespace engine::search {

// Keeps what stages of one model keep, exchange and update, under all that it depends on.
class KnownStates {
 public:
  explicit KnownStates(plan::DeviceProfile profile) : profile_(std::move(profile)) {}

  // Of stages that hold `shapes`, in their order; `parameters` as StatesOfStage takes them. The states live as long as
  // this object.
  std::vector<const StageStates*> Of(const recipe::Recipe& recipe, const compile::FlatExchange& exchange,
                                     const std::vector<StageShape>& shapes, ModelParameters* parameters);

 private:
  plan::DeviceProfile profile_;
  absl::flat_hash_map<StatesKey, std::unique_ptr<const StageStates>> known_;
};

}  // namespace engine::search

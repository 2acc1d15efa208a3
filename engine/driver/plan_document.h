// plan.json: a plan with the recipe that it was made from and what an iteration of it is predicted to take.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::driver {

// plan/json.h's, with "recipe" (the resolved recipe as TOML) and "prediction" (predict/compare.h).
nlohmann::ordered_json PlanDocument(const recipe::Recipe& recipe, const plan::Plan& plan);

}  // namespace engine::driver

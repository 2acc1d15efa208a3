#include "engine/search/whole_plans.h"

#include "engine/driver/compile_recipe.h"
#include "engine/predict/predict.h"

namespace engine::search {

absl::StatusOr<Estimate> WholePlans::Fold(const recipe::Recipe& recipe, double) {
  ++compiled_;
  ASSIGN_OR_RETURN(const plan::Plan plan, driver::CompileUnverified(recipe, options_));
  Estimate estimate;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::StagePlan& stage = plan.stages[s];
    if (stage.arena_bytes <= estimate.arena_bytes) continue;
    estimate.arena_bytes = stage.arena_bytes;
    estimate.memory = stage.memory;
    estimate.stage = static_cast<std::int32_t>(s);
  }
  estimate.iteration_s = predict::Predict(plan, recipe.cluster).iteration_s;
  return estimate;
}

}  // namespace engine::search

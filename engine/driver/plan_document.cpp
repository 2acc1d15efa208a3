#include "engine/driver/plan_document.h"

#include "engine/plan/json.h"
#include "engine/predict/compare.h"
#include "engine/predict/experts.h"
#include "engine/predict/predict.h"
#include "engine/recipe/print.h"
#include "engine/recipe/saving.h"

namespace engine::driver {

nlohmann::ordered_json PlanDocument(const recipe::Recipe& recipe, const plan::Plan& plan) {
  nlohmann::ordered_json json = plan::ToJson(plan);
  json["prediction"] = predict::PredictionToJson(predict::Predict(plan, recipe.cluster));
  const predict::ExpertUse experts = predict::ExpertsOf(plan);
  if (experts.experts > 0) json["experts"] = predict::ExpertsToJson(experts);
  if (recipe::SavesBeside(recipe)) {
    const predict::SnapshotPrediction copy = predict::PredictSnapshot(plan, recipe.cluster);
    json["checkpoint"] = {{"host_bytes", copy.bytes}, {"copy_s", copy.copy_s}};
  }
  if (recipe.checkpoint.memory) {
    const predict::MemoryCheckpointPrediction memory = predict::PredictMemoryCheckpoint(plan, recipe);
    json["memory_checkpoint"] = {{"host_bytes", memory.bytes},
                                 {"sent_bytes", memory.sent_bytes},
                                 {"interval", memory.interval},
                                 {"slower", memory.slower}};
  }
  json["recipe"] = recipe::ToToml(recipe);
  return json;
}

}  // namespace engine::driver

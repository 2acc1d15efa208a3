#include "engine/train/plan_document.h"

#include "engine/plan/compare.h"
#include "engine/plan/json.h"
#include "engine/recipe/print.h"

namespace engine::train {

nlohmann::ordered_json PlanDocument(const recipe::Recipe& recipe, const plan::Plan& plan) {
  nlohmann::ordered_json json = plan::ToJson(plan);
  json["prediction"] = plan::PredictionToJson(plan::Predict(plan, recipe.cluster));
  json["recipe"] = recipe::ToToml(recipe);
  return json;
}

}  // namespace engine::train

// A part of predict/predict.h: what kernels took, put together by components of the model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/predict/predict.h"

namespace engine::predict {

// `times`: by Plan::components, and at the end what belongs to none. Layers of a stack that are alike become one use, with
// what lies within them.
StageComponents UsesOf(const plan::Plan& plan, const plan::StagePlan& stage,
                       const std::vector<PassTimes>& times);

// A table for people: what the slowest stage's iteration goes to. Empty where the plan's nodes belong to no components.
std::string ComponentsText(const Prediction& prediction);

nlohmann::ordered_json UsesToJson(const std::vector<ComponentUse>& uses);

}  // namespace engine::predict

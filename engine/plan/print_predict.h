// A prediction for people: what `engine plan` prints of it.
#pragma once

#include <string>

#include "engine/plan/predict.h"

namespace engine::plan {

// Time of an iteration, tokens a second, MFU and, by stage, what the time goes to and how much exchange is
// hidden behind computation. Where rates are missing, which.
std::string PredictionText(const Plan& plan, const recipe::Cluster& cluster, const Prediction& prediction);

}  // namespace engine::plan

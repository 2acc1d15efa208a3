// A prediction for people: what `engine plan` prints of it.
#pragma once

#include <string>

#include "engine/predict/predict.h"

namespace engine::predict {

// Time of an iteration, tokens a second, MFU and, by stage, what the time goes to and how much exchange is
// hidden behind computation; of the slowest stage, what it goes to by components of the model. Where rates are missing, which.
std::string PredictionText(const plan::Plan& plan, const recipe::Cluster& cluster,
                           const Prediction& prediction);

}  // namespace engine::predict

// A part of predict/predict.h: a program played over all stages of a plan.
#pragma once

#include <vector>

#include "engine/predict/computation.h"
#include "engine/predict/predict.h"

namespace engine::predict {

struct Played {
  double end_s = 0;               // 0: the program does not come to its end
  std::vector<StageTime> stages;  // all zero then
  // Of each stage (Computation::TimeByComponent); empty then.
  std::vector<std::vector<PassTimes>> by_component = {};
};

// Plays it once, from its first step to the last of all stages.
Played Play(const PlayInputs& inputs);

}  // namespace engine::predict

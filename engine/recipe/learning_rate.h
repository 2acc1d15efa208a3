// Learning-rate schedules, in units of samples (Megatron-LM's OptimizerParamScheduler).
#pragma once

#include <cstdint>

#include "engine/recipe/recipe.h"

namespace engine::recipe {

struct ScheduleLengths {  // in samples
  double warmup = 0, decay = 0, wsd_decay = 0;
};
ScheduleLengths LengthsOf(const recipe::Recipe& recipe);

// Rate of the update that comes after `samples` samples have been consumed, those of skipped iterations not
// counted (0 for the first update, which so runs at warmup_init where there is a warm-up). With w = warm-up,
// d = decay length, r = (samples − w)/(d − w):
//   samples ≤ w      warmup_init + (max − warmup_init)·samples/w
//   constant         max, past d too
//   samples > d      min, for every other kind
//   inverse_sqrt     max(min, max·√max(w, 1)/√max(samples, 1))
//   linear, cosine   min + (1 − r)(max − min), min + ½(1 + cos πr)(max − min)
//   wsd              max until d − wsd_decay, then min + c(q)(max − min), q the fraction of wsd_decay done:
//                    linear 1 − q, cosine ½(1 + cos πq), exponential 2·½^q − 1, minus_sqrt 1 − √q
double LearningRate(const recipe::Recipe& recipe, std::int64_t samples);

}  // namespace engine::recipe

// The control block of a rank: f64 numbers on the device that the host writes before an iteration, or that
// the update computes. Nothing of them travels to the host while an iteration runs.
#pragma once

namespace engine::plan {

enum Control {
  kLearningRate,     // written by the host before each iteration
  kIteration,        // likewise, from 0: keys dropout
  kStep,             // optimizer steps done, skipped ones not counted; clip_factor adds 1
  kGradientNorm,     // of the unscaled gradients, before clipping
  kGradientFactor,   // what AdamW multiplies gradients by: clipping and 1 / loss scale; 0: skip this update
  kLossScale,        // of the dynamic scaler; 1 where there is none
  kCleanIterations,  // since the loss scale last changed
  kHysteresis,       // overflows left before the loss scale is halved
  kSkipped,          // iterations skipped so far, for gradients that were not finite
  kControlNumbers = 12
};

}  // namespace engine::plan

// The control block of a rank: f64 numbers on the device that the host writes before an iteration, or that
// the update computes. Nothing of them travels to the host while an iteration runs.
#pragma once

namespace engine::plan {

enum Control {
  kLearningRate,  // of this update: clip_factor picks it
  kIteration,     // written by the host before each iteration, from 0: keys dropout
  kStep,          // optimizer steps done, skipped ones not counted; clip_factor adds 1
  kGradientNorm,  // of the unscaled gradients, before clipping
  // Written by the host before each iteration: Plan::GradientFactor of its program. clip_factor makes of it what the update
  // multiplies gradients by, with clipping and 1 / loss scale; 0: skip this update.
  kGradientFactor,
  kLossScale,        // 1 where there is none (plan/loss_scaler.h)
  kCleanIterations,  // since the loss scale last changed, or an update was skipped
  kHysteresis,       // overflows left before the loss scale is halved; infinite where it never is
  kSkipped,          // iterations skipped so far, for gradients that were not finite
  kKnownSteps,       // written by the host before each iteration: of kStep, as far as it knows
  kRateIfKnown,      // likewise: the learning rate if kStep is still that when the update comes
  kRateIfMore,       // likewise: if it is more by then
  // Written by the host before each iteration: labels of its batch / those that count in the loss. The gradient of a loss of
  // labels is multiplied by it, so that the loss is the mean over those that count.
  kLabelFactor,
  kControlNumbers,
  kSavedControlNumbers = kLabelFactor  // that a checkpoint has
};

// Picks the learning rate of an update, before its own step is counted. Clears what the host wrote, so that
// nothing of the block tells how much the host knew.
constexpr void PickLearningRate(double* control) {
  const bool more = control[kStep] > control[kKnownSteps];
  control[kLearningRate] = control[more ? kRateIfMore : kRateIfKnown];
  control[kKnownSteps] = control[kRateIfKnown] = control[kRateIfMore] = 0;
}

}  // namespace engine::plan

#include "engine/plan/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/plan/control.h"

namespace engine::plan {
namespace {

// A constant scale is halved after infinitely many overflows: so a checkpoint tells it from one that moves.
double FirstHysteresis(const LossScaler& scaler) {
  if (!scaler.skips) return 0;
  return scaler.moves() ? static_cast<double>(scaler.hysteresis) : std::numeric_limits<double>::infinity();
}

void Begin(const LossScaler& scaler, double* control) {
  control[kLossScale] = scaler.scale;
  control[kCleanIterations] = 0;
  control[kHysteresis] = FirstHysteresis(scaler);
}

}  // namespace

LossScaler LossScalerOf(const recipe::Recipe& recipe) {
  const recipe::Precision& precision = recipe.precision;
  const bool skips = recipe.guard.on_nonfinite == "skip";
  if (precision.compute == "fp16" && precision.loss_scale > 0) {
    return {.scale = precision.loss_scale, .skips = true};
  }
  if (precision.compute == "fp16") {
    return {.scale = precision.initial_loss_scale,
            .skips = true,
            .window = precision.loss_scale_window,
            .hysteresis = precision.loss_scale_hysteresis,
            .min_scale = precision.min_loss_scale};
  }
  if (precision.compute != "fp8") return {.skips = skips};
  // A power of two that makes the gradient of one token's logits about 1, as the gradients' first scales
  // expect.
  const double tokens =
      static_cast<double>(recipe.training.global_batch) * static_cast<double>(recipe.data.sequence_length);
  return {.scale = std::exp2(std::ceil(std::log2(tokens))), .skips = skips};
}

void SetScaler(const LossScaler& scaler, graph::Attributes* clip_factor) {
  if (!scaler.skips) return;
  if (!scaler.moves()) {
    clip_factor->Set("constant", std::int64_t{1});
    return;
  }
  clip_factor->Set("dynamic", std::int64_t{1});
  clip_factor->Set("window", scaler.window);
  clip_factor->Set("hysteresis", scaler.hysteresis);
  clip_factor->Set("min_scale", scaler.min_scale);
}

void StartControl(const LossScaler& scaler, double* control) {
  std::fill_n(control, kControlNumbers, 0.0);
  control[kLabelFactor] = 1;
  Begin(scaler, control);
}

void ResumeControl(const LossScaler& scaler, double* control) {
  const bool moved = std::isfinite(control[kHysteresis]);
  if (!moved || !scaler.moves()) return Begin(scaler, control);
  control[kLossScale] = std::max(control[kLossScale], scaler.min_scale);
  control[kHysteresis] = std::min(control[kHysteresis], FirstHysteresis(scaler));
}

}  // namespace engine::plan

// The loss scale of a plan, and what of it is in the control block of a rank.
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/recipe/recipe.h"

namespace engine::plan {

// What the loss is multiplied by before it is differentiated; the gradient factor divides it out.
struct LossScaler {
  double scale = 1;  // at the start of a run
  // An update whose gradients are not finite is skipped: in fp16, and where guard.on_nonfinite says so.
  bool skips = false;
  // Where it skips: the numbers of Megatron-LM's DynamicGradScaler. window 0: its ConstantGradScaler, whose
  // scale never moves.
  std::int64_t window = 0;      // updates in a row that were not skipped, after which the scale doubles
  std::int64_t hysteresis = 0;  // skipped updates since it doubled, at which and after which it is halved
  double min_scale = 0;

  bool moves() const { return window > 0; }
};

LossScaler LossScalerOf(const recipe::Recipe& recipe);

// How clip_factor is told of it: nothing where no update is skipped; "constant"; or "dynamic" with its
// numbers.
void SetScaler(const LossScaler& scaler, graph::Attributes* clip_factor);

// The control block (plan/control.h) before the first iteration.
void StartControl(const LossScaler& scaler, double* control);

// The block of a checkpoint, of a run that skipped updates as well, as a run with this scaler goes on with
// it. A scale that moved, and moves, goes on from where it was, within the new bounds; else the new scaler
// begins.
void ResumeControl(const LossScaler& scaler, double* control);

}  // namespace engine::plan

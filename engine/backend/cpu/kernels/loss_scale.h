// The numbers of the control block by which gradients of losses are multiplied: all of them by the loss scale, those of losses
// of labels by the label factor too.
#pragma once

#include "engine/backend/kernel.h"
#include "engine/plan/control.h"

namespace engine::backend::cpu {

// 1 without a control block.
inline double LossScale(const KernelArgs& args) {
  const double* control = args.context == nullptr ? nullptr : args.context->control;
  return control != nullptr ? control[plan::kLossScale] : 1.0;
}
inline double LabelScale(const KernelArgs& args) {
  const double* control = args.context == nullptr ? nullptr : args.context->control;
  return control != nullptr ? control[plan::kLossScale] * control[plan::kLabelFactor] : 1.0;
}

}  // namespace engine::backend::cpu

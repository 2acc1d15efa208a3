// The loss scale of the control block, which gradients of losses are multiplied by.
#pragma once

#include "engine/backend/kernel.h"
#include "engine/plan/control.h"

namespace engine::backend::cpu {

// 1 without a control block.
inline double LossScale(const KernelArgs& args) {
  const double* control = args.context == nullptr ? nullptr : args.context->control;
  return control != nullptr ? control[plan::kLossScale] : 1.0;
}

}  // namespace engine::backend::cpu

// Tables of rotary positions: [model.rotary] NAME = { dim = "E", base = 1e4, … }.
#pragma once

#include <absl/status/statusor.h>

#include "engine/model/step_context.h"

namespace engine::model {

// What the table's keys (RotaryKeys) come to, as attributes of the ops that rotate (ops/qkv.cpp). A mistake is reported.
absl::StatusOr<Rotary> RotaryOf(StepContext& keys);

}  // namespace engine::model

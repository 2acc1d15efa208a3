// Part of VerifyGradients: parameters that several stages hold.
#pragma once

#include <absl/status/status.h>

#include "engine/plan/plan.h"

namespace engine::verify {

// The copies of tied parameters must stay equal: the stages that hold them sum and round in the same way.
absl::Status TiedCopiesStayEqual(const plan::Plan& plan);

}  // namespace engine::verify

// What must hold for an instruction of a pass by itself, whatever ran before it. An error of these says only what
// is wrong; the caller puts the instruction's name before it.
#pragma once

#include <absl/status/status.h>

#include <cstdint>

#include "engine/plan/plan.h"

namespace engine::verify {

// A buffer has the type and the elements of its value's part on a rank. `times`: how many halves' it is.
absl::Status HasItsSize(const plan::Plan& plan, const plan::BufferRef& ref, std::int64_t times);

// What runs once for both halves sums over the rows of its inputs.
absl::Status OnlySumsOfBoth(const plan::Plan& plan, const plan::Instruction& instruction);

// Kernels run on the computation's stream; where two halves run at once (`halves`), all exchange beside it.
absl::Status OnItsStream(const plan::Instruction& instruction, bool halves);

// Outputs and scratch share no bytes with each other or with inputs, but for what the op does in place.
absl::Status Apart(const plan::Plan& plan, const plan::Instruction& instruction);

}  // namespace engine::verify

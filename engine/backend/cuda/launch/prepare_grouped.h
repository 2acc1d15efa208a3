// How a product of rows of experts becomes something that can be enqueued.
#pragma once

#include "engine/backend/cuda/kernels/grouped.h"
#include "engine/backend/cuda/launch/prepare.h"

namespace engine::backend::cuda {

// By the tensor cores where they take it, else by the plain kernel. order: of kWgrad, i32 [E] of scratch, in which every thread finds
// the groups largest first, so that the last tiles are short; else null.
absl::StatusOr<Enqueue> PrepareGroupedProduct(const Device& device, const GroupedProduct& product,
                                              std::int32_t* order);

}  // namespace engine::backend::cuda

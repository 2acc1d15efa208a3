// Where linear_cross_entropy keeps what in its scratch: the scratch rule and the launcher read the same.
#pragma once

#include <cstdint>

#include "engine/backend/cuda/scratch.h"

namespace engine::backend::cuda {

// Offsets in bytes, all multiples of 256; the products' workspace stands at 0.
struct LinearCrossEntropyLayout {
  std::int64_t chunk = 0;   // tokens whose logits exist at once
  std::int64_t logits = 0;  // [chunk, V], dtype of x
  std::int64_t losses = 0;  // [B·S] fp32
  std::int64_t bytes = 0;
};
LinearCrossEntropyLayout LayoutOf(const graph::TensorType& x, const graph::TensorType& w,
                                  const graph::Attributes& attributes);

}  // namespace engine::backend::cuda

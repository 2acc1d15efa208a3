// What attributes of the loss's ops tell the kernels (ops/cross_entropy.cpp).
#pragma once

#include "engine/backend/cuda/kernels/cross_entropy.h"
#include "engine/graph/graph.h"

namespace engine::backend::cuda {

inline LossTerms LossTermsOf(const graph::Attributes& attributes) {
  return {.smoothing = attributes.Float("smoothing", 0),
          .z_loss = attributes.Float("z_loss", 0),
          .classes = attributes.Int("classes")};
}

}  // namespace engine::backend::cuda

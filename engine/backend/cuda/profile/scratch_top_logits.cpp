#include "engine/backend/cuda/profile/scratch_top_logits.h"

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

std::int64_t TopLogitsScratch(Types inputs, Types, const graph::Attributes&, const CudaTarget&) {
  const Shape& logits = inputs[0].shape;
  return CutTopLogits(logits[0], logits[2]).bytes;
}

}  // namespace engine::backend::cuda

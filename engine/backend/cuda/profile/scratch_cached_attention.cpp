#include "engine/backend/cuda/profile/scratch_cached_attention.h"

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

std::int64_t CachedAttentionScratch(Types inputs, Types, const graph::Attributes& attributes,
                                    const CudaTarget&) {
  const bool invariant = attributes.Int("invariant", 0) != 0;
  return CutCachedAttention(inputs[0].shape, inputs[1].shape, inputs[2].shape, invariant).scratch_bytes;
}

}  // namespace engine::backend::cuda

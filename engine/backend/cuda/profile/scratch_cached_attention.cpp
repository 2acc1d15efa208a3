#include "engine/backend/cuda/profile/scratch_cached_attention.h"

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

std::int64_t CachedAttentionScratch(Types inputs, Types, const graph::Attributes&, const CudaTarget&) {
  return CutCachedAttention(inputs[0].shape, inputs[3].shape, inputs[4].shape).scratch_bytes;
}

}  // namespace engine::backend::cuda

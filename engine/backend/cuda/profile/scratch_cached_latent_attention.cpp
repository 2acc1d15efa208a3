#include "engine/backend/cuda/profile/scratch_cached_latent_attention.h"

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

std::int64_t CachedLatentAttentionScratch(Types inputs, Types, const graph::Attributes& attributes,
                                          const CudaTarget&) {
  return CutCachedLatentAttention(inputs[0].shape, inputs[1].shape, attributes.Int("first", 0),
                                  inputs[4].shape, inputs[5].shape, inputs[0].dtype)
      .scratch_bytes;
}

}  // namespace engine::backend::cuda

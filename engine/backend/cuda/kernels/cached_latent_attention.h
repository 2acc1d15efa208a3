// Attention over caches of latents (ops/cached_latent_attention.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

struct CachedLatentAttention {
  DType dtype = DType::kBF16;  // f32, bf16 or f16; scores and sums are fp32
  bool narrow_cache = false;   // latents and shared parts are kept in e4m3
  std::int64_t samples = 0, heads = 0;
  std::int64_t width = 0, shared_width = 0;  // C, R
  std::int64_t rows = 0;                     // of a slot
  std::int64_t window = 0;                   // 0: none
  // Elements of a head of `rest`, and where those begin that meet shared parts of keys.
  std::int64_t rest_width = 0, first = 0;
  float scale = 1;
  // All on 16-byte boundaries.
  const void* q = nullptr;       // [samples, heads, C]
  const void* rest = nullptr;    // [samples, heads, rest_width]
  const void* latent = nullptr;  // [samples, C], of the new tokens, which go to the caches, too
  const void* shared = nullptr;  // [samples, R], likewise
  void* latents = nullptr;       // [slots, rows, C]
  void* shareds = nullptr;       // [slots, rows, R]
  const std::int32_t* positions = nullptr;
  const std::int32_t* slots = nullptr;
  void* z = nullptr;  // [samples, heads, C]
  // As profile/scratch_cached_latent_attention.h cuts it: whether tiles of tensor cores do it, and keys of a block. What a block
  // makes goes to scratch unless one has all.
  bool tiles = false;
  std::int64_t chunk = 0;
  float* scratch = nullptr;
};
void LaunchCachedLatentAttention(const CachedLatentAttention& attention, cudaStream_t stream);

}  // namespace engine::backend::cuda

// Caches of keys and values, and attention over them (ops/cached_attention.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

struct CacheUpdate {
  DType dtype = DType::kBF16;  // of x: f32, bf16 or f16
  bool narrow_cache = false;   // the cache is e4m3, else as x
  std::int64_t samples = 0, tokens = 0;
  std::int64_t width = 0;   // elements of a token, of all heads
  std::int64_t rows = 0;    // of a slot
  const void* x = nullptr;  // [samples, tokens, width]
  void* cache = nullptr;    // [slots, rows, width]
  const std::int32_t* positions = nullptr;
  const std::int32_t* slots = nullptr;
};
void LaunchCacheUpdate(const CacheUpdate& update, cudaStream_t stream);

struct CachedAttention {
  DType dtype = DType::kBF16;  // f32, bf16 or f16; scores and sums are fp32
  bool narrow_cache = false;   // keys and values are e4m3
  std::int64_t samples = 0, heads = 0, kv_heads = 0;
  std::int64_t width = 0, value_width = 0;     // of a head of keys, of values (512 at most)
  std::int64_t rows = 0;                       // of a slot
  std::int64_t window = 0;                     // 0: none
  std::int64_t distance = 0;                   // that biases tell apart at most
  std::int64_t pairs = 0;                      // or places whose pairs have a bias each
  std::int64_t first_head = 0, all_heads = 0;  // logical: where those here begin, and how many there are
  bool alibi = false;
  float scale = 1, softcap = 0;
  const void* q = nullptr;
  const void* k = nullptr;  // of the new tokens, which go to the caches, too
  const void* v = nullptr;  // likewise
  void* keys = nullptr;
  void* values = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* slots = nullptr;
  const void* sinks = nullptr;   // of the first head here; null: none
  const void* biases = nullptr;  // likewise
  void* o = nullptr;
  // A block has so many keys; what it makes goes to scratch unless one has all (profile/scratch_cached_attention.h).
  std::int64_t chunk = 0;
  float* scratch = nullptr;
};
void LaunchCachedAttention(const CachedAttention& attention, cudaStream_t stream);
// Adds up what chunks of keys have left in scratch, and makes o of it. bf16 and f16.
void LaunchAddChunks(const CachedAttention& attention, int chunks, cudaStream_t stream);

// Keeps the new tokens in the caches alone, and writes the positions of the keys that each sample's queries see, [B, queries, 2]:
// none of a sample whose slot is −1. Reads of `attention` all but q, o and what scores are made of.
void LaunchKeepTokens(const CachedAttention& attention, std::int64_t queries, std::int32_t* spans,
                      cudaStream_t stream);

struct TakeTokens {
  DType dtype = DType::kBF16;
  std::int64_t samples = 0, tokens = 0, taken = 0;  // of a sample
  std::int64_t width = 0;                           // elements of a token
  const void* x = nullptr;
  const std::int32_t* index = nullptr;
  void* y = nullptr;
};
void LaunchTakeTokens(const TakeTokens& take, cudaStream_t stream);

}  // namespace engine::backend::cuda

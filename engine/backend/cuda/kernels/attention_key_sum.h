// Launcher of attention_key_sum.cu: gradients of keys, or of values, over several chunks of queries.
#pragma once

#include "engine/backend/cuda/kernels/attention_reference.h"

namespace engine::backend::cuda {

// T keys, of which the chunk sees the first `part_keys`; E elements of a head, a multiple of 8.
struct AttentionKeySum {
  DType dtype = DType::kBF16;  // of part and out
  std::int64_t samples = 0, keys = 0, kv_heads = 0, head = 0;
  const void* part = nullptr;  // [samples, part_keys, kv_heads, E]
  std::int64_t part_keys = 0;
  float* sum = nullptr;    // [samples, T, kv_heads, E] of the chunks before; 16-byte aligned, as all here
  AttentionView out = {};  // [samples, T, kv_heads, E]
  bool first = false;      // sum is taken to be 0
  bool last = false;       // out = the sum, rounded; else sum is updated
};

void AddKeyGradients(const AttentionKeySum& problem, cudaStream_t stream);

}  // namespace engine::backend::cuda

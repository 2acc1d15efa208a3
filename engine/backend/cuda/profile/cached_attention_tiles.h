// The blocks that attention over caches of keys and values is carried out by.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// Whether each query head has keys of its own, of a size that kernels without tensor cores read (cached_attention_own_keys.cu).
inline bool HasOwnKeys(std::int64_t heads, std::int64_t kv_heads, std::int64_t width,
                       std::int64_t value_width) {
  return heads == kv_heads && width == value_width && width % 8 == 0 && width <= 256;
}
// Blocks that a multiprocessor has at once: where each query head has keys of its own; where heads share keys; and likewise, where caches
// are in e4m3 and their rows not too wide for that.
inline constexpr int kOwnKeysBlocks = 6;
inline constexpr int kSharedKeysBlocks = 2;
inline constexpr int kNarrowBlocks = 4;
constexpr bool HasNarrowBlocks(std::int64_t width, std::int64_t value_width) {
  return width + value_width <= 256;
}

}  // namespace engine::backend::cuda

// Dropout's Bernoulli draws: element `index` of a stream is kept iff its uniform number is at least p.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/philox.h"

namespace engine::backend::cpu {

inline constexpr std::int64_t kPhiloxBlocks = 64;  // drawn at once, four words each

// Philox4x32 (base/philox.h) of the blocks [first, first + 64), a round of all of them at a time so that the
// loops vectorise: words[4·b + i] is word i of block first + b.
inline void DrawPhiloxBlocks(PhiloxKey key, std::uint64_t first, std::uint64_t epoch, std::uint32_t* words) {
  std::uint32_t c0[kPhiloxBlocks], c1[kPhiloxBlocks], c2[kPhiloxBlocks], c3[kPhiloxBlocks];
  for (std::int64_t b = 0; b < kPhiloxBlocks; ++b) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(b);
    c0[b] = static_cast<std::uint32_t>(block);
    c1[b] = static_cast<std::uint32_t>(block >> 32);
    c2[b] = static_cast<std::uint32_t>(epoch);
    c3[b] = static_cast<std::uint32_t>(epoch >> 32);
  }
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t k0 = key.low + static_cast<std::uint32_t>(round) * 0x9E3779B9U;
    const std::uint32_t k1 = key.high + static_cast<std::uint32_t>(round) * 0xBB67AE85U;
    for (std::int64_t b = 0; b < kPhiloxBlocks; ++b) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c0[b];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c2[b];
      c0[b] = static_cast<std::uint32_t>(product1 >> 32) ^ c1[b] ^ k0;
      c2[b] = static_cast<std::uint32_t>(product0 >> 32) ^ c3[b] ^ k1;
      c1[b] = static_cast<std::uint32_t>(product1);
      c3[b] = static_cast<std::uint32_t>(product0);
    }
  }
  for (std::int64_t b = 0; b < kPhiloxBlocks; ++b) {
    words[4 * b] = c0[b];
    words[4 * b + 1] = c1[b];
    words[4 * b + 2] = c2[b];
    words[4 * b + 3] = c3[b];
  }
}

// out = in · scale where the element is kept, else 0, for the `count` consecutive elements from `start`. in
// may be out.
template <typename T>
void ScaleKept(PhiloxKey key, std::uint64_t epoch, std::uint64_t start, std::int64_t count, float p, T scale,
               const T* in, T* out) {
  std::uint32_t words[4 * kPhiloxBlocks];
  std::int64_t done = 0;
  while (done < count) {
    const std::uint64_t index = start + static_cast<std::uint64_t>(done);
    const auto skip = static_cast<std::int64_t>(index & 3);
    DrawPhiloxBlocks(key, index >> 2, epoch, words);
    const std::int64_t now = std::min(count - done, 4 * kPhiloxBlocks - skip);
    for (std::int64_t i = 0; i < now; ++i) {
      const T kept = in[done + i] * scale;
      out[done + i] = UniformFromWord(words[skip + i]) >= p ? kept : T(0);
    }
    done += now;
  }
}

}  // namespace engine::backend::cpu

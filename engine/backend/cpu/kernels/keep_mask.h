// Dropout's Bernoulli draws: element `index` of a stream is kept iff its uniform number is at least p.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/philox.h"

namespace engine::backend::cpu {

// keep(i) called as visit(i, kept) for the `count` consecutive elements from `start`, i from 0.
template <typename Visit>
inline void ForEachKeep(PhiloxKey key, std::uint64_t epoch, std::uint64_t start, std::int64_t count, float p,
                        const Visit& visit) {
  constexpr std::int64_t kBlocks = 64;  // Philox blocks of 4 words drawn at once
  std::uint32_t words[4 * kBlocks];
  std::int64_t done = 0;
  while (done < count) {
    const std::uint64_t index = start + static_cast<std::uint64_t>(done);
    const std::uint64_t block = index >> 2;
    const auto skip = static_cast<std::int64_t>(index & 3);
    const std::int64_t blocks = std::min(kBlocks, (skip + count - done + 3) / 4);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto four = Philox4x32(key, block + static_cast<std::uint64_t>(b), epoch);
      for (int i = 0; i < 4; ++i) words[4 * b + i] = four[i];
    }
    const std::int64_t now = std::min(count - done, 4 * blocks - skip);
    for (std::int64_t i = 0; i < now; ++i) visit(done + i, UniformFromWord(words[skip + i]) >= p);
    done += now;
  }
}

}  // namespace engine::backend::cpu

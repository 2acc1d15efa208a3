// Dropout of elements of a stream (base/dropout_draws.h), many at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/dropout_draws.h"

namespace engine::backend::cpu {

// out = in · scale where the element is kept, else 0, for the `count` consecutive elements from `start`. in
// may be out.
template <typename T>
void ScaleKept(PhiloxKey key, std::uint64_t iteration, std::uint64_t start, std::int64_t count,
               const Dropping& dropping, const T* in, T* out) {
  constexpr std::int64_t kDraws = kDrawsOfBlock * kPhiloxBlocks;
  std::uint32_t words[4 * kPhiloxBlocks];
  std::uint32_t draws[kDraws];
  const T scale = static_cast<T>(dropping.scale);
  std::int64_t done = 0;
  while (done < count) {
    const std::uint64_t index = start + static_cast<std::uint64_t>(done);
    const auto skip = static_cast<std::int64_t>(index % kDrawsOfBlock);
    DrawPhiloxBlocks<kDropoutDrawRounds>(key, index / kDrawsOfBlock, iteration, words);
    for (std::int64_t i = 0; i < kDraws / 2; ++i) {
      draws[2 * i] = words[i] & 0xFFFFU;
      draws[2 * i + 1] = words[i] >> 16;
    }
    const std::int64_t now = std::min<std::int64_t>(count - done, kDraws - skip);
    for (std::int64_t i = 0; i < now; ++i) {
      const T kept = in[done + i] * scale;
      out[done + i] = draws[skip + i] >= dropping.below ? kept : T(0);
    }
    done += now;
  }
}

}  // namespace engine::backend::cpu

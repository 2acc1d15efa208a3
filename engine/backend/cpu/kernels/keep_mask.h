// Dropout's Bernoulli draws: element `index` of a stream is kept iff its uniform number is at least p.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/philox.h"

namespace engine::backend::cpu {

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
    const std::int64_t now = std::min<std::int64_t>(count - done, 4 * kPhiloxBlocks - skip);
    for (std::int64_t i = 0; i < now; ++i) {
      const T kept = in[done + i] * scale;
      out[done + i] = UniformFromWord(words[skip + i]) >= p ? kept : T(0);
    }
    done += now;
  }
}

}  // namespace engine::backend::cpu

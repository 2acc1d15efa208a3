// How the search for the largest logits of a row is cut into parts.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// Columns of a row that a block of threads looks at, and into how many groups it divides them.
inline constexpr std::int64_t kTopLogitsPart = 4096;
inline constexpr std::int64_t kTopLogitsGroups = 256;
// At most so many of the largest logits can be asked for.
inline constexpr std::int64_t kMostTopLogits = 128;

// Each part leaves the largest logit of each group, as four bytes, and three numbers of fp32: its largest, and its sums for
// the temperatures 1 and T. Groups of all samples lie in front of the numbers.
struct TopLogitsCut {
  std::int64_t parts = 0;  // of a row
  std::int64_t largest_bytes = 0, bytes = 0;
};
inline TopLogitsCut CutTopLogits(std::int64_t samples, std::int64_t columns) {
  TopLogitsCut cut;
  cut.parts = (columns + kTopLogitsPart - 1) / kTopLogitsPart;
  cut.largest_bytes = samples * cut.parts * kTopLogitsGroups * 4;
  cut.bytes = cut.largest_bytes + samples * cut.parts * 3 * 4;
  return cut;
}

}  // namespace engine::backend::cuda

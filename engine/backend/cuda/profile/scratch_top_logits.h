// How the search for the largest logits of a row is cut into parts.
#pragma once

#include <cstdint>

namespace engine::backend::cuda {

// Columns of a row that a block of threads looks at.
inline constexpr std::int64_t kTopLogitsPart = 4096;
// At most so many of the largest logits can be asked for: a block of threads sorts no more.
inline constexpr std::int64_t kMostTopLogits = 128;

// Each part leaves its `count` largest logits, as keys of 8 bytes, and three numbers of fp32: its largest, and its sums for
// the temperatures 1 and T. Keys of all samples lie in front of the numbers.
struct TopLogitsCut {
  std::int64_t parts = 0;  // of a row
  std::int64_t key_bytes = 0, bytes = 0;
};
inline TopLogitsCut CutTopLogits(std::int64_t samples, std::int64_t columns, std::int64_t count) {
  TopLogitsCut cut;
  cut.parts = (columns + kTopLogitsPart - 1) / kTopLogitsPart;
  cut.key_bytes = samples * cut.parts * count * 8;
  cut.bytes = cut.key_bytes + samples * cut.parts * 3 * 4;
  return cut;
}

}  // namespace engine::backend::cuda

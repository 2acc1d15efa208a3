// Where the words of a box are, for kernels that copy it: thread i takes word i.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/boxes.h"
#include "engine/backend/divisor.h"

namespace engine::backend {

// Loops of more than one pass.
inline int LoopsOf(const Box& box) {
  return static_cast<int>(
      std::count_if(box.size.begin(), box.size.end(), [](std::int64_t n) { return n > 1; }));
}

// The loops of more than one pass of a box that has at most `loops` of them and at most 2^31 words: the
// innermost first; of the last one the size is not asked for.
template <int loops>
struct BoxWalk {
  // From the box's first word, in both tensors.
  struct Places {
    std::int64_t from = 0;
    std::int64_t to = 0;
  };

  explicit BoxWalk(const Box& box) {
    int next = 0;
    for (int loop = Box::kLoops; loop-- > 0;) {
      const auto l = static_cast<std::size_t>(loop);
      if (box.size[l] == 1) continue;
      size[next] = Divisor(static_cast<std::uint32_t>(box.size[l]));
      from_stride[next] = box.from_stride[l];
      to_stride[next] = box.to_stride[l];
      ++next;
    }
  }

  constexpr Places operator()(std::uint32_t word) const {
    Places places;
    for (int loop = 0; loop < loops - 1; ++loop) {
      const std::uint32_t outer = size[loop](word);
      const std::uint32_t index = word - outer * size[loop].number;
      places.from += index * from_stride[loop];
      places.to += index * to_stride[loop];
      word = outer;
    }
    places.from += word * from_stride[loops - 1];
    places.to += word * to_stride[loops - 1];
    return places;
  }

  Divisor size[loops] = {};
  std::int64_t from_stride[loops] = {};
  std::int64_t to_stride[loops] = {};
};

}  // namespace engine::backend

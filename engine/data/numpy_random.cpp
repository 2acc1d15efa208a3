#include "engine/data/numpy_random.h"

#include <bit>

namespace engine::data {

std::uint64_t NumpyRandom::Interval(std::uint64_t max) {
  if (max == 0) return 0;
  const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(max);
  while (true) {
    std::uint64_t draw = Next32();
    if (max > 0xFFFFFFFFU) draw = (draw << 32) | Next32();
    if ((draw & mask) <= max) return draw & mask;
  }
}

}  // namespace engine::data

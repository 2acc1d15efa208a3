// A contiguous range of a local tensor's memory as boxes of the logical tensor: what one rank of a sharded
// optimizer (ZeRO) holds of a parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/checkpoint/box.h"

namespace engine::checkpoint {

// `local` is the local tensor's box within the logical one; [begin, end) counts elements of the row-major
// local tensor, 0 <= begin <= end <= its size. Returns boxes in logical coordinates, in memory order,
// disjoint and together exactly the range; each is contiguous in the local tensor's memory, so its data
// starts at the range's data plus the elements of the boxes before it. At most 2·rank - 1 boxes; none for an
// empty range.
std::vector<Box> BoxesOfFlatRange(const Box& local, std::int64_t begin, std::int64_t end);

}  // namespace engine::checkpoint

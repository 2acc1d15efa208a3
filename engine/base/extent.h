// Which logical elements a local tensor holds: per dim, the ordered intervals of logical indices behind its
// local indices. One interval for a contiguous split, two for a zigzag split of a sequence (and pieces of
// those).
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>

#include "engine/base/shape.h"

namespace engine {

struct Interval {
  std::int64_t start = 0;
  std::int64_t length = 0;
  bool operator==(const Interval& other) const { return start == other.start && length == other.length; }
};

// In local order. Their lengths add up to at most the local size; local indices past them are padding.
using DimExtent = absl::InlinedVector<Interval, 2>;

struct Extent {
  absl::InlinedVector<DimExtent, 5> dims;

  static Extent Whole(const Shape& shape) {
    Extent extent;
    for (std::int64_t size : shape) extent.dims.push_back({Interval{0, size}});
    return extent;
  }
};

// Logical index of local index `local`, or −1 in the padding.
inline std::int64_t LogicalIndex(const DimExtent& extent, std::int64_t local) {
  for (const Interval& interval : extent) {
    if (local < interval.length) return interval.start + local;
    local -= interval.length;
  }
  return -1;
}

inline std::int64_t Length(const DimExtent& extent) {
  std::int64_t length = 0;
  for (const Interval& interval : extent) length += interval.length;
  return length;
}

}  // namespace engine

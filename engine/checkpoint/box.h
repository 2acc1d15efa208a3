// A box: a hyper-rectangle of a logical tensor. Shards, reads and writes all speak in boxes, never in ranks'
// layouts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/shape.h"

namespace engine::checkpoint {

struct Box {
  Shape start;  // index of the first element, one number a dim
  Shape count;  // elements along each dim; same rank as start

  bool operator==(const Box& other) const { return start == other.start && count == other.count; }
};

inline Box WholeBox(const Shape& shape) {
  Box box{{}, shape};
  for (int dim = 0; dim < shape.rank(); ++dim) box.start.push_back(0);
  return box;
}

// True if the ranks agree, every count is at least 1 and the box lies within the shape. Safe for hostile
// numbers.
bool IsInside(const Box& box, const Shape& shape);

// The common part of two boxes of one rank, if it is not empty. Two scalars' boxes always meet.
std::optional<Box> Intersect(const Box& a, const Box& b);

std::string ToString(const Box& box);  // "[0:64, 128:256]": half-open, as in Python

}  // namespace engine::checkpoint

#include "engine/checkpoint/box.h"

#include <fmt/format.h>

#include <algorithm>

namespace engine::checkpoint {

bool IsInside(const Box& box, const Shape& shape) {
  if (box.start.rank() != shape.rank() || box.count.rank() != shape.rank()) return false;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const std::int64_t start = box.start[dim];
    const std::int64_t count = box.count[dim];
    if (start < 0 || count < 1 || count > shape[dim] || start > shape[dim] - count) return false;
  }
  return true;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common;
  for (int dim = 0; dim < a.start.rank(); ++dim) {
    const std::int64_t start = std::max(a.start[dim], b.start[dim]);
    const std::int64_t end = std::min(a.start[dim] + a.count[dim], b.start[dim] + b.count[dim]);
    if (start >= end) return std::nullopt;
    common.start.push_back(start);
    common.count.push_back(end - start);
  }
  return common;
}

std::string ToString(const Box& box) {
  std::string text = "[";
  for (int dim = 0; dim < box.start.rank(); ++dim) {
    if (dim > 0) text += ", ";
    text += fmt::format("{}:{}", box.start[dim], box.start[dim] + box.count[dim]);
  }
  return text + "]";
}

}  // namespace engine::checkpoint

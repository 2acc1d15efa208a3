// Which elements two local tensors have in common, as boxes: what a conversion between placements copies.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/base/extent.h"
#include "engine/base/shape.h"

namespace engine::backend {

// `length` consecutive local indices along one dim of two tensors that mean the same logical indices.
struct CommonRun {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t length = 0;
};

// In order of `to`.
std::vector<CommonRun> CommonRuns(const DimExtent& from, const DimExtent& to);

// Nested loops over elements: (i0, …) stands at from + Σ i·from_stride in one tensor and at to + Σ
// i·to_stride in the other, counted in elements. The innermost loop is the last; unused loops have size 1.
struct Box {
  static constexpr int kLoops = 5;
  std::array<std::int64_t, kLoops> size = {1, 1, 1, 1, 1};
  std::array<std::int64_t, kLoops> from_stride = {};
  std::array<std::int64_t, kLoops> to_stride = {};
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t elements() const { return size[0] * size[1] * size[2] * size[3] * size[4]; }
};

// The elements that two row-major local tensors (of at most five dims) share. As few boxes as their intervals
// allow, loops that go on without a gap in both tensors joined.
std::vector<Box> CommonBoxes(const Extent& from, const Shape& from_shape, const Extent& to,
                             const Shape& to_shape);

// `planes` × `rows` rows of `width` bytes, as a copy engine takes them. All in bytes, offsets from the
// tensors' beginnings.
struct PitchedCopy {
  std::int64_t from = 0, to = 0;
  std::int64_t width = 0;
  std::int64_t rows = 1, planes = 1;
  std::int64_t from_pitch = 0, to_pitch = 0;  // from row to row; at least `width`
  std::int64_t from_plane = 0, to_plane = 0;  // from plane to plane: whole pitches; 0 of a single plane
};

// One copy, where the box has no more loops than rows and planes make up for.
std::vector<PitchedCopy> PitchedCopies(const Box& box, std::int64_t element_bytes);

// What both hold, in the order of `to`.
Extent Intersection(const Extent& from, const Extent& to);
Shape SizesOf(const Extent& extent);

}  // namespace engine::backend

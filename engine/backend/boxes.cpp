#include "engine/backend/boxes.h"

#include <algorithm>

#include "engine/base/status.h"

namespace engine::backend {
namespace {

// Joins a loop with the one inside it where both tensors go on without a gap, and moves all to the end.
Box Joined(const Box& box) {
  Box joined;
  joined.from = box.from;
  joined.to = box.to;
  int at = Box::kLoops;
  for (int loop = Box::kLoops - 1; loop >= 0; --loop) {
    const auto l = static_cast<size_t>(loop);
    if (box.size[l] == 1) continue;
    const auto inner = static_cast<size_t>(at);
    if (at < Box::kLoops && box.from_stride[l] == joined.size[inner] * joined.from_stride[inner] &&
        box.to_stride[l] == joined.size[inner] * joined.to_stride[inner]) {
      joined.size[inner] *= box.size[l];
      continue;
    }
    --at;
    const auto outer = static_cast<size_t>(at);
    joined.size[outer] = box.size[l];
    joined.from_stride[outer] = box.from_stride[l];
    joined.to_stride[outer] = box.to_stride[l];
  }
  return joined;
}

}  // namespace

std::vector<CommonRun> CommonRuns(const DimExtent& from, const DimExtent& to) {
  std::vector<CommonRun> runs;
  std::int64_t to_local = 0;
  for (const Interval& mine : to) {
    std::int64_t from_local = 0;
    for (const Interval& theirs : from) {
      const std::int64_t begin = std::max(mine.start, theirs.start);
      const std::int64_t end = std::min(mine.start + mine.length, theirs.start + theirs.length);
      if (begin < end) {
        runs.push_back({from_local + begin - theirs.start, to_local + begin - mine.start, end - begin});
      }
      from_local += theirs.length;
    }
    to_local += mine.length;
  }
  return runs;
}

std::vector<Box> CommonBoxes(const Extent& from, const Shape& from_shape, const Extent& to,
                             const Shape& to_shape) {
  ENGINE_CHECK(to_shape.rank() <= Box::kLoops, "a tensor of {} dims", to_shape.rank());
  std::vector<Box> boxes = {Box{}};
  std::int64_t from_stride = 1;
  std::int64_t to_stride = 1;
  for (int dim = to_shape.rank() - 1; dim >= 0; --dim) {
    const auto d = static_cast<size_t>(dim);
    std::vector<Box> next;
    for (const Box& inner : boxes) {
      for (const CommonRun& run : CommonRuns(from.dims[d], to.dims[d])) {
        Box box = inner;
        box.size[d] = run.length;
        box.from_stride[d] = from_stride;
        box.to_stride[d] = to_stride;
        box.from += run.from * from_stride;
        box.to += run.to * to_stride;
        next.push_back(box);
      }
    }
    boxes = std::move(next);
    from_stride *= from_shape[dim];
    to_stride *= to_shape[dim];
  }
  for (Box& box : boxes) box = Joined(box);
  return boxes;
}

std::vector<PitchedCopy> PitchedCopies(const Box& box, std::int64_t element_bytes) {
  struct Loop {
    std::int64_t size, from_stride, to_stride;
  };
  std::vector<Loop> loops;  // innermost first
  for (size_t l = Box::kLoops; l-- > 0;) {
    if (box.size[l] == 1) continue;
    loops.push_back({box.size[l], box.from_stride[l] * element_bytes, box.to_stride[l] * element_bytes});
  }
  PitchedCopy whole{.from = box.from * element_bytes, .to = box.to * element_bytes, .width = element_bytes};
  size_t next = 0;
  if (!loops.empty() && loops[0].from_stride == element_bytes && loops[0].to_stride == element_bytes) {
    whole.width = loops[next++].size * element_bytes;
  }
  whole.from_pitch = whole.to_pitch = whole.width;
  if (next < loops.size()) {
    const Loop& rows = loops[next++];
    ENGINE_CHECK(rows.from_stride >= whole.width && rows.to_stride >= whole.width, "rows overlap");
    whole.rows = rows.size;
    whole.from_pitch = rows.from_stride;
    whole.to_pitch = rows.to_stride;
  }
  if (next < loops.size() && loops[next].from_stride % whole.from_pitch == 0 &&
      loops[next].to_stride % whole.to_pitch == 0) {
    const Loop& planes = loops[next++];
    whole.planes = planes.size;
    whole.from_plane = planes.from_stride;
    whole.to_plane = planes.to_stride;
  }
  std::vector<PitchedCopy> copies = {whole};
  for (; next < loops.size(); ++next) {
    std::vector<PitchedCopy> repeated;
    for (std::int64_t i = 0; i < loops[next].size; ++i) {
      for (PitchedCopy copy : copies) {
        copy.from += i * loops[next].from_stride;
        copy.to += i * loops[next].to_stride;
        repeated.push_back(copy);
      }
    }
    copies = std::move(repeated);
  }
  return copies;
}

Extent Intersection(const Extent& from, const Extent& to) {
  Extent common;
  for (size_t d = 0; d < to.dims.size(); ++d) {
    DimExtent dim;
    for (const CommonRun& run : CommonRuns(from.dims[d], to.dims[d])) {
      dim.push_back({LogicalIndex(to.dims[d], run.to), run.length});
    }
    common.dims.push_back(std::move(dim));
  }
  return common;
}

Shape SizesOf(const Extent& extent) {
  Shape sizes;
  for (const DimExtent& dim : extent.dims) sizes.push_back(Length(dim));
  return sizes;
}

}  // namespace engine::backend

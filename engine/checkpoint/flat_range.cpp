#include "engine/checkpoint/flat_range.h"

#include <algorithm>

#include "engine/base/status.h"

namespace engine::checkpoint {
namespace {

// The largest box that starts at flat position `begin` and ends at or before `end`: a run of whole slices of
// one dim.
Box LeadingBox(const Box& local, std::int64_t begin, std::int64_t end, std::int64_t* elements) {
  const int rank = local.count.rank();
  Box box{local.start, local.count};
  std::int64_t slice = local.count.elements();  // elements of one index of dim
  std::int64_t rest = begin;
  for (int dim = 0; dim < rank; ++dim) {
    slice /= local.count[dim];
    const std::int64_t index = rest / slice;
    rest %= slice;
    box.start[dim] += index;
    box.count[dim] = 1;
    if (rest == 0 && end - begin >= slice) {
      box.count[dim] = std::min(local.count[dim] - index, (end - begin) / slice);
      *elements = box.count[dim] * slice;
      for (int inner = dim + 1; inner < rank; ++inner) box.count[inner] = local.count[inner];
      return box;
    }
  }
  *elements = 1;  // a scalar
  return box;
}

}  // namespace

std::vector<Box> BoxesOfFlatRange(const Box& local, std::int64_t begin, std::int64_t end) {
  ENGINE_CHECK(0 <= begin && begin <= end && end <= local.count.elements(), "range [{}, {}) of {} elements",
               begin, end, local.count.elements());
  std::vector<Box> boxes;
  while (begin < end) {
    std::int64_t elements = 0;
    boxes.push_back(LeadingBox(local, begin, end, &elements));
    begin += elements;
  }
  return boxes;
}

}  // namespace engine::checkpoint

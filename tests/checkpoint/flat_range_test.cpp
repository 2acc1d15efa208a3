#include "engine/checkpoint/flat_range.h"

#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

// The flat positions in the local tensor of a logical box's elements, in the box's own order.
std::vector<std::int64_t> PositionsOf(const Box& box, const Box& local) {
  std::vector<std::int64_t> positions;
  for (std::int64_t flat = 0; flat < box.count.elements(); ++flat) {
    std::int64_t rest = flat;
    std::int64_t position = 0;
    std::int64_t stride = 1;
    for (int dim = box.start.rank() - 1; dim >= 0; --dim) {
      position += (box.start[dim] - local.start[dim] + rest % box.count[dim]) * stride;
      rest /= box.count[dim];
      stride *= local.count[dim];
    }
    positions.push_back(position);
  }
  return positions;
}

TEST_CASE("a range's boxes are its elements, in order, in few boxes") {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    Shape shape;
    for (std::int64_t rank = Draw(random, 0, 4); shape.rank() < rank;) shape.push_back(Draw(random, 1, 6));
    const Box local = RandomBox(shape, random);
    const std::int64_t size = local.count.elements();
    const std::int64_t begin = Draw(random, 0, size);
    const std::int64_t end = Draw(random, begin, size);
    const std::vector<Box> boxes = BoxesOfFlatRange(local, begin, end);
    CHECK(static_cast<int>(boxes.size()) <= std::max(1, 2 * shape.rank() - 1));
    std::int64_t next = begin;
    for (const Box& box : boxes) {
      CHECK(IsInside(box, shape));
      for (std::int64_t position : PositionsOf(box, local)) CHECK(position == next++);
    }
    CHECK(next == end);
  }
}

TEST_CASE("examples") {
  const Box local = {{10, 100}, {3, 4}};
  CHECK(BoxesOfFlatRange(local, 0, 12) == std::vector<Box>{local});
  CHECK(BoxesOfFlatRange(local, 5, 5).empty());
  CHECK(BoxesOfFlatRange(local, 3, 9) ==
        std::vector<Box>{{{10, 103}, {1, 1}}, {{11, 100}, {1, 4}}, {{12, 100}, {1, 1}}});
}

}  // namespace
}  // namespace engine::checkpoint

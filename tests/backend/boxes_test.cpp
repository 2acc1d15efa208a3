// Boxes between random extents against a walk over all elements.
#include "engine/backend/boxes.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "engine/backend/box_walk.h"

namespace engine::backend {
namespace {

using Random = std::mt19937_64;

std::int64_t Draw(Random& random, std::int64_t from, std::int64_t to) {
  return std::uniform_int_distribution<std::int64_t>(from, to)(random);
}

// One or two intervals of [0, size), in any order.
DimExtent DrawDim(Random& random, std::int64_t size) {
  if (Draw(random, 0, 2) == 0) return {Interval{0, size}};
  const std::int64_t middle = Draw(random, 1, size - 1);
  const std::int64_t low = Draw(random, 0, middle - 1);
  const Interval first{low, Draw(random, 1, middle - low)};
  const Interval second{middle, Draw(random, 1, size - middle)};
  switch (Draw(random, 0, 2)) {
    case 0:
      return {first};
    case 1:
      return {first, second};
    default:
      return {second, first};
  }
}

struct Local {
  Extent extent;
  Shape shape;
  std::map<std::int64_t, std::int64_t> place;  // logical index → local index
};

Local LocalOf(Extent extent, const Shape& logical) {
  Local local{std::move(extent), {}, {}};
  local.shape = SizesOf(local.extent);
  for (std::int64_t flat = 0; flat < local.shape.elements(); ++flat) {
    std::int64_t rest = flat;
    std::int64_t index = 0;
    std::int64_t stride = 1;
    for (int dim = logical.rank() - 1; dim >= 0; --dim) {
      index += LogicalIndex(local.extent.dims[static_cast<size_t>(dim)], rest % local.shape[dim]) * stride;
      rest /= local.shape[dim];
      stride *= logical[dim];
    }
    local.place[index] = flat;
  }
  return local;
}

Local DrawLocal(Random& random, const Shape& logical) {
  Extent extent;
  for (std::int64_t size : logical) extent.dims.push_back(DrawDim(random, size));
  return LocalOf(std::move(extent), logical);
}

// to[local index] = from's local index, −1 where no box writes; −2 where two do.
std::vector<std::int64_t> Carried(const std::vector<Box>& boxes, std::int64_t elements) {
  std::vector<std::int64_t> carried(static_cast<size_t>(elements), -1);
  for (const Box& box : boxes) {
    for (std::int64_t i = 0; i < box.elements(); ++i) {
      std::int64_t rest = i;
      std::int64_t from = box.from;
      std::int64_t to = box.to;
      for (size_t loop = Box::kLoops; loop-- > 0;) {
        from += rest % box.size[loop] * box.from_stride[loop];
        to += rest % box.size[loop] * box.to_stride[loop];
        rest /= box.size[loop];
      }
      std::int64_t& cell = carried.at(static_cast<size_t>(to));
      cell = cell == -1 ? from : -2;
    }
  }
  return carried;
}

// The same word by word, as a kernel goes, by a walk of `loops` loops; nothing where a box has more.
template <int loops>
std::vector<std::int64_t> Walked(const std::vector<Box>& boxes, std::int64_t elements) {
  std::vector<std::int64_t> carried(static_cast<size_t>(elements), -1);
  for (const Box& box : boxes) {
    if (LoopsOf(box) > loops) return {};
    const BoxWalk<loops> walk(box);
    for (std::int64_t i = 0; i < box.elements(); ++i) {
      const auto places = walk(static_cast<std::uint32_t>(i));
      std::int64_t& cell = carried.at(static_cast<size_t>(box.to + places.to));
      cell = cell == -1 ? box.from + places.from : -2;
    }
  }
  return carried;
}

// The same of copies of rows, of elements of one byte.
std::vector<std::int64_t> Carried(const std::vector<PitchedCopy>& copies, std::int64_t elements) {
  std::vector<std::int64_t> carried(static_cast<size_t>(elements), -1);
  for (const PitchedCopy& copy : copies) {
    for (std::int64_t plane = 0; plane < copy.planes; ++plane) {
      for (std::int64_t row = 0; row < copy.rows; ++row) {
        for (std::int64_t x = 0; x < copy.width; ++x) {
          const std::int64_t to = copy.to + plane * copy.to_plane + row * copy.to_pitch + x;
          std::int64_t& cell = carried.at(static_cast<size_t>(to));
          cell = cell == -1 ? copy.from + plane * copy.from_plane + row * copy.from_pitch + x : -2;
        }
      }
    }
  }
  return carried;
}

std::vector<std::int64_t> Expected(const Local& from, const Local& to) {
  std::vector<std::int64_t> expected(static_cast<size_t>(to.shape.elements()), -1);
  for (const auto& [index, at] : to.place) {
    const auto found = from.place.find(index);
    if (found != from.place.end()) expected[static_cast<size_t>(at)] = found->second;
  }
  return expected;
}

}  // namespace

TEST_CASE("boxes carry every common element once, to where it belongs") {
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    Shape logical;
    for (std::int64_t dim = Draw(random, 1, 4); dim > 0; --dim) logical.push_back(Draw(random, 2, 6));
    const Local from = DrawLocal(random, logical);
    const Local to = DrawLocal(random, logical);
    CHECK((Carried(CommonBoxes(from.extent, from.shape, to.extent, to.shape), to.shape.elements()) ==
           Expected(from, to)));
    // By way of a parcel that holds what both have.
    const Local parcel = LocalOf(Intersection(from.extent, to.extent), logical);
    CHECK((Carried(CommonBoxes(from.extent, from.shape, parcel.extent, parcel.shape),
                   parcel.shape.elements()) == Expected(from, parcel)));
    CHECK((Carried(CommonBoxes(parcel.extent, parcel.shape, to.extent, to.shape), to.shape.elements()) ==
           Expected(parcel, to)));
  }
}

TEST_CASE("boxes that are walked word by word carry the same") {
  Random random(7);
  std::set<int> loops;
  for (int i = 0; i < 1500; ++i) {
    Shape logical;
    for (std::int64_t dim = Draw(random, 1, 5); dim > 0; --dim) logical.push_back(Draw(random, 2, 6));
    const Local from = DrawLocal(random, logical);
    const Local to = DrawLocal(random, logical);
    const std::vector<Box> boxes = CommonBoxes(from.extent, from.shape, to.extent, to.shape);
    const std::int64_t elements = to.shape.elements();
    for (const Box& box : boxes) loops.insert(LoopsOf(box));
    const std::vector<std::int64_t> expected = Expected(from, to);
    CHECK((Walked<5>(boxes, elements) == expected));
    for (const auto& fewer : {Walked<1>(boxes, elements), Walked<2>(boxes, elements),
                              Walked<3>(boxes, elements), Walked<4>(boxes, elements)})
      CHECK((fewer.empty() || fewer == expected));
  }
  CHECK((loops == std::set<int>{0, 1, 2, 3, 4, 5}));
}

TEST_CASE("boxes as copies of rows and planes carry the same") {
  Random random(6);
  size_t most = 0;
  for (int i = 0; i < 300; ++i) {
    Shape logical;
    for (std::int64_t dim = Draw(random, 1, 5); dim > 0; --dim) logical.push_back(Draw(random, 2, 6));
    const Local from = DrawLocal(random, logical);
    const Local to = DrawLocal(random, logical);
    std::vector<PitchedCopy> copies;
    for (const Box& box : CommonBoxes(from.extent, from.shape, to.extent, to.shape)) {
      const std::vector<PitchedCopy> of_box = PitchedCopies(box, 1);
      for (const PitchedCopy& copy : of_box) {
        CHECK(copy.from_pitch >= copy.width);
        CHECK(copy.to_pitch >= copy.width);
        CHECK(copy.from_plane % copy.from_pitch == 0);
        CHECK(copy.to_plane % copy.to_pitch == 0);
      }
      most = std::max(most, of_box.size());
      copies.insert(copies.end(), of_box.begin(), of_box.end());
    }
    CHECK((Carried(copies, to.shape.elements()) == Expected(from, to)));
  }
  CHECK(most > 1);  // boxes of more loops than a copy has were among them
}

TEST_CASE("a box of three loops is one copy, in bytes") {
  // Heads 1 and 2 of 6 of 5 elements, of [2, 8, 6, 5] into [2, 8, 2, 5].
  const Shape whole = {2, 8, 6, 5};
  Extent heads = Extent::Whole(whole);
  heads.dims[1] = {Interval{0, 4}};
  heads.dims[2] = {Interval{1, 2}};
  const std::vector<Box> boxes = CommonBoxes(Extent::Whole(whole), whole, heads, {2, 4, 2, 5});
  REQUIRE(boxes.size() == 1);
  const std::vector<PitchedCopy> copies = PitchedCopies(boxes[0], 2);
  REQUIRE(copies.size() == 1);
  CHECK(copies[0].from == 5 * 2);
  CHECK(copies[0].to == 0);
  CHECK(copies[0].width == 10 * 2);
  CHECK(copies[0].rows == 4);
  CHECK(copies[0].planes == 2);
  CHECK(copies[0].from_pitch == 30 * 2);
  CHECK(copies[0].to_pitch == 10 * 2);
  CHECK(copies[0].from_plane == 240 * 2);
  CHECK(copies[0].to_plane == 40 * 2);
}

TEST_CASE("loops that go on without a gap are joined") {
  // Half of dim 1 of [4, 8, 3, 5]: 4 stretches of 60 elements.
  const Shape whole = {4, 8, 3, 5};
  Extent half = Extent::Whole(whole);
  half.dims[1] = {Interval{4, 4}};
  const std::vector<Box> boxes = CommonBoxes(Extent::Whole(whole), whole, half, {4, 4, 3, 5});
  REQUIRE(boxes.size() == 1);
  CHECK((boxes[0].size == std::array<std::int64_t, 5>{1, 1, 1, 4, 60}));
  CHECK(boxes[0].from_stride[3] == 120);
  CHECK(boxes[0].to_stride[3] == 60);
  CHECK(boxes[0].from == 60);
  CHECK(boxes[0].to == 0);
}

}  // namespace engine::backend

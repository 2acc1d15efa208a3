#include "engine/checkpoint/box.h"

#include <doctest/doctest.h>

#include <limits>

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST_CASE("a box is inside its shape up to the last element, and hostile numbers do not overflow") {
  const Shape shape = {4, 6};
  CHECK(IsInside({{0, 0}, {4, 6}}, shape));
  CHECK(IsInside({{3, 5}, {1, 1}}, shape));
  CHECK_FALSE(IsInside({{3, 5}, {1, 2}}, shape));
  CHECK_FALSE(IsInside({{-1, 0}, {1, 1}}, shape));
  CHECK_FALSE(IsInside({{0, 0}, {0, 1}}, shape));
  CHECK_FALSE(IsInside({{kHuge, 0}, {kHuge, 1}}, shape));
  CHECK_FALSE(IsInside({{1, 0}, {kHuge, 1}}, shape));
  CHECK_FALSE(IsInside({{0}, {1}}, shape));
  CHECK_FALSE(IsInside({{0, 0}, {1}}, shape));
  CHECK(IsInside({{}, {}}, Shape{}));
}

TEST_CASE("intersections") {
  const Box a = {{0, 2}, {4, 4}};
  CHECK(*Intersect(a, {{3, 0}, {5, 3}}) == Box{{3, 2}, {1, 1}});
  CHECK_FALSE(Intersect(a, {{4, 2}, {1, 4}}));
  CHECK_FALSE(Intersect(a, {{0, 6}, {4, 1}}));
  CHECK(Intersect({{}, {}}, {{}, {}}));
  CHECK(ToString(a) == "[0:4, 2:6]");
  CHECK(ToString(WholeBox({})) == "[]");
}

}  // namespace
}  // namespace engine::checkpoint

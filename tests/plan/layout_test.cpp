#include "engine/plan/layout.h"

#include <doctest/doctest.h>

#include <vector>

namespace engine::plan {
namespace {

std::vector<std::int64_t> Indices(const DimExtent& extent) {
  std::vector<std::int64_t> indices;
  for (const Interval& piece : extent) {
    for (std::int64_t i = 0; i < piece.length; ++i) indices.push_back(piece.start + i);
  }
  return indices;
}

Coordinates At(std::int64_t tp, std::int64_t cp, std::int64_t dp) {
  Coordinates at;
  at.axis = {tp, cp, 0, dp};
  return at;
}

}  // namespace

TEST_CASE("layout: cp gives rank r the chunks r and 2·cp−1−r of the sequence, tp cuts what is left") {
  const Mesh mesh{.sizes = {2, 2, 1, 2}, .pp = 1};
  Layout layout({graph::Dim::kSample, graph::Dim::kCausalSequence, graph::Dim::kFeature});
  REQUIRE(layout.Set(Axis::kDp, Placement::S(0)));
  REQUIRE(layout.Set(Axis::kCp, Placement::S(1)));
  const Shape shape = {4, 16, 3};
  CHECK(layout.LocalShape(shape, mesh) == Shape{2, 8, 3});
  using Ids = std::vector<std::int64_t>;
  CHECK(Indices(layout.ExtentOf(shape, mesh, At(0, 0, 1)).dims[0]) == Ids{2, 3});
  CHECK(Indices(layout.ExtentOf(shape, mesh, At(0, 0, 0)).dims[1]) == Ids{0, 1, 2, 3, 12, 13, 14, 15});
  CHECK(Indices(layout.ExtentOf(shape, mesh, At(0, 1, 0)).dims[1]) == Ids{4, 5, 6, 7, 8, 9, 10, 11});
  REQUIRE(layout.Set(Axis::kTp, Placement::S(1)));
  CHECK(layout.LocalShape(shape, mesh) == Shape{2, 4, 3});
  CHECK(Indices(layout.ExtentOf(shape, mesh, At(1, 0, 0)).dims[1]) == Ids{12, 13, 14, 15});
  CHECK(Indices(layout.ExtentOf(shape, mesh, At(0, 1, 0)).dims[1]) == Ids{4, 5, 6, 7});
  CHECK(layout.ToString() == "tp:S(1) cp:S(1) dp:S(0)");
  // The inner split can be taken back, the outer one not before it.
  CHECK_FALSE(layout.Set(Axis::kCp, Placement::R()));
  CHECK(layout.Set(Axis::kTp, Placement::R()));
  CHECK(layout.Set(Axis::kCp, Placement::R()));
  CHECK(layout.ToString() == "dp:S(0)");
}

TEST_CASE("layout: partial sums, equality, and what does not divide") {
  const Mesh mesh{.sizes = {2, 2, 1, 2}, .pp = 1};
  Layout layout;
  layout.Set(Axis::kTp, Placement::P(graph::Reduction::kLogSumExp));
  layout.Set(Axis::kDp, Placement::P());
  CHECK(layout.ToString() == "tp:P(lse) dp:P");
  CHECK(layout.PartialAxes() == (AxisSet::Of(Axis::kTp) | AxisSet::Of(Axis::kDp)));
  Layout other = layout;
  CHECK(other == layout);
  other.Set(Axis::kTp, Placement::P());
  CHECK_FALSE(other == layout);
  Layout split({graph::Dim::kSample, graph::Dim::kCausalSequence});
  split.Set(Axis::kCp, Placement::S(1));
  CHECK(split.Divides({1, 8}, mesh));
  CHECK_FALSE(split.Divides({1, 6}, mesh));  // zigzag cuts into 2·cp = 4
}

TEST_CASE(
    "layout: without a causal mask a sequence is cut into contiguous pieces; what a dim means decides the "
    "nesting") {
  const Mesh mesh{.sizes = {2, 2, 2, 1}, .pp = 1};
  Layout encoder({graph::Dim::kSample, graph::Dim::kSequence});
  REQUIRE(encoder.Set(Axis::kCp, Placement::S(1)));
  CHECK(encoder.Divides({1, 6}, mesh));
  using Ids = std::vector<std::int64_t>;
  CHECK(Indices(encoder.ExtentOf({2, 6}, mesh, At(0, 1, 0)).dims[1]) == Ids{3, 4, 5});
  // A sequence is cut by cp, then by tp; heads by tp, then by cp: the inner split alone can be taken back.
  for (const bool heads : {false, true}) {
    Layout layout({graph::Dim::kSample, heads ? graph::Dim::kHead : graph::Dim::kSequence});
    REQUIRE(layout.Set(Axis::kCp, Placement::S(1)));
    REQUIRE(layout.Set(Axis::kTp, Placement::S(1)));
    CHECK(Layout(layout).Set(Axis::kCp, Placement::R()) == heads);
    CHECK(Layout(layout).Set(Axis::kTp, Placement::R()) == !heads);
  }
  // Slots are cut by ep within what cp and tp left, so that ep can exchange them for whole experts.
  Layout slots({graph::Dim::kExpert, graph::Dim::kSlot, graph::Dim::kFeature});
  REQUIRE(slots.Set(Axis::kEp, Placement::S(1)));
  REQUIRE(slots.Set(Axis::kCp, Placement::S(1)));
  CHECK(slots.Set(Axis::kEp, Placement::S(0)));
}

}  // namespace engine::plan

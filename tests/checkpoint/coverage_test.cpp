#include "engine/checkpoint/coverage.h"

#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

TEST_CASE("random cuts cover; one box less, more or moved does not") {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    Shape shape;
    for (std::int64_t rank = Draw(random, 1, 4); shape.rank() < rank;) shape.push_back(Draw(random, 1, 9));
    std::vector<Box> boxes = RandomCut(shape, 12, random);
    std::shuffle(boxes.begin(), boxes.end(), random);
    CHECK(CheckCoverage("w", shape, boxes).ok());
    std::vector<Box> fewer(boxes.begin() + 1, boxes.end());
    CHECK(Contains(CheckCoverage("w", shape, fewer), "is missing"));
    std::vector<Box> more = boxes;
    more.push_back(RandomBox(shape, random));
    CHECK(Contains(CheckCoverage("w", shape, more), "overlap"));
    // As much volume as the shape has, with a hole and an overlap.
    if (boxes.size() > 1 && boxes[0].count == boxes[1].count) {
      boxes[0] = boxes[1];
      CHECK(Contains(CheckCoverage("w", shape, boxes), "overlap"));
    }
  }
}

TEST_CASE("errors name the tensor and the box") {
  const std::vector<Box> hole = {{{0, 0}, {4, 2}}, {{0, 2}, {3, 2}}};
  CHECK(Message(CheckCoverage("mlp.weight", {4, 4}, hole)) ==
        "tensor mlp.weight: its 2 pieces cover 14 of the 16 elements of [4, 4]; [3:4, 2:4] is missing");
  const std::vector<Box> overlap = {{{0, 0}, {4, 2}}, {{0, 1}, {4, 2}}};
  CHECK(Message(CheckCoverage("mlp.weight", {4, 4}, overlap)) ==
        "tensor mlp.weight: pieces [0:4, 0:2] and [0:4, 1:3] overlap");
  CHECK(Message(CheckCoverage("mlp.weight", {4, 4}, {{{0, 0}, {4, 5}}})) ==
        "tensor mlp.weight: piece [0:4, 0:5] is not inside its shape [4, 4]");
  CHECK(Contains(CheckCoverage("scale", {}, {}),
                 "its 0 pieces cover 0 of the 1 elements of []; [] is missing"));
  CHECK(CheckCoverage("scale", {}, {WholeBox({})}).ok());
  CHECK(Contains(CheckCoverage("scale", {}, {WholeBox({}), WholeBox({})}), "overlap"));
}

TEST_CASE("a pinwheel, which no plane cuts, covers") {
  std::vector<Box> boxes = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  CHECK(CheckCoverage("w", {3, 3}, boxes).ok());
  boxes[4] = {{0, 1}, {2, 1}};
  CHECK(Contains(CheckCoverage("w", {3, 3}, boxes), "overlap"));
}

TEST_CASE("a fine grid is checked in a moment, and a spiral does not exhaust the stack") {
  std::vector<Box> grid;
  for (int i = 0; i < 300; ++i) {
    for (int j = 0; j < 300; ++j) grid.push_back({{i * 2, j * 3}, {2, 3}});
  }
  CHECK(CheckCoverage("w", {600, 900}, grid).ok());

  std::vector<Box> spiral;  // each box is a row or a column cut off the square that is left
  constexpr std::int64_t kTurns = 2000;
  for (std::int64_t i = 0; i < kTurns; ++i) {
    spiral.push_back({{i, i}, {1, kTurns - i}});
    if (i + 1 < kTurns) spiral.push_back({{i + 1, i}, {kTurns - i - 1, 1}});
  }
  CHECK(CheckCoverage("w", {kTurns, kTurns}, spiral).ok());
}

}  // namespace
}  // namespace engine::checkpoint

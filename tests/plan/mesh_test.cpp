#include "engine/plan/mesh.h"

#include <doctest/doctest.h>

namespace engine::plan {
namespace {

using Ranks = std::vector<std::int64_t>;

Mesh Of(std::int64_t tp, std::int64_t cp, std::int64_t ep, std::int64_t dp, std::int64_t pp) {
  return {.sizes = {tp, cp, ep, dp}, .pp = pp};
}

}  // namespace

TEST_CASE("mesh: worked groups of 16 ranks, tp 2 · pp 4 · dp 2 (Megatron-LM's order)") {
  const Mesh mesh = Of(2, 1, 1, 2, 4);
  CHECK(mesh.world() == 16);
  CHECK(mesh.Group(0, AxisSet::Of(Axis::kTp)) == Ranks{0, 1});
  CHECK(mesh.Group(15, AxisSet::Of(Axis::kTp)) == Ranks{14, 15});
  CHECK(mesh.Group(0, AxisSet::Of(Axis::kDp)) == Ranks{0, 2});
  CHECK(mesh.Group(5, AxisSet::Of(Axis::kDp)) == Ranks{5, 7});
  CHECK(mesh.Group(13, AxisSet::Of(Axis::kDp)) == Ranks{13, 15});
  CHECK(mesh.Group(6, AxisSet::Pp()) == Ranks{2, 6, 10, 14});
  CHECK(mesh.Group(2, AxisSet::Of(Axis::kTp) | AxisSet::Pp()) == Ranks{2, 3, 6, 7, 10, 11, 14, 15});
  CHECK(mesh.Group(12, Group::OfHolders({3, 0})) == Ranks{0, 12});
  CHECK(mesh.Group(9, Group::OfHolders({2, 0, 1})) == Ranks{1, 5, 9});
  CHECK(mesh.Group(3, AxisSet::World()).size() == 16);
}

TEST_CASE("mesh: worked groups of tp 2 · cp 2 · dp 2 · pp 2, and of ep") {
  const Mesh mesh = Of(2, 2, 1, 2, 2);
  CHECK(mesh.Group(8, AxisSet::Of(Axis::kCp)) == Ranks{8, 10});
  CHECK(mesh.Group(3, AxisSet::Of(Axis::kDp)) == Ranks{3, 7});
  CHECK(mesh.Group(9, AxisSet::Of(Axis::kDp) | AxisSet::Of(Axis::kCp)) == Ranks{9, 11, 13, 15});
  CHECK(mesh.Group(15, AxisSet::Pp()) == Ranks{7, 15});
  // Here ep is a factor of its own: tp 2 · ep 2 · dp 2 has 8 ranks a stage.
  const Mesh experts = Of(2, 1, 2, 2, 1);
  CHECK(experts.Group(1, AxisSet::Of(Axis::kEp)) == Ranks{1, 3});
  CHECK(experts.Group(1, AxisSet::Of(Axis::kDp)) == Ranks{1, 5});
  CHECK(experts.Group(0, AxisSet::Replicas()) == Ranks{0, 2, 4, 6});
}

TEST_CASE("mesh: coordinates and ranks are inverse, and a rank's place in its group is its index") {
  const Mesh mesh = Of(2, 3, 2, 2, 3);
  for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.CoordinatesOf(rank);
    CHECK(mesh.RankOf(at) == rank);
    for (AxisSet axes : {AxisSet::Of(Axis::kTp), AxisSet::Of(Axis::kCp) | AxisSet::Of(Axis::kDp),
                         AxisSet::Replicas(), AxisSet::World(), AxisSet::Pp()}) {
      const Ranks group = mesh.Group(rank, axes);
      CHECK(static_cast<std::int64_t>(group.size()) == mesh.GroupSize(axes));
      CHECK(group[static_cast<size_t>(mesh.IndexInGroup(at, axes))] == rank);
    }
  }
  CHECK(mesh.Active(AxisSet::World()).ToString() == "world");
  CHECK(Of(2, 1, 1, 1, 1).Active(AxisSet::World()) == AxisSet::Of(Axis::kTp));
  CHECK(AxisSet().ToString() == "-");
}

TEST_CASE("mesh: the holders of a tied parameter are named where they are not the first and the last stage") {
  const Mesh mesh = Of(2, 1, 2, 1, 4);
  CHECK(mesh.NameOf(Group::OfHolders({0, 3})) == "tie");
  CHECK(mesh.NameOf(Group::OfHolders({3, 1, 0})) == "tie(0, 1, 3)");
  CHECK(mesh.NameOf(Group::OfHolders({1, 2})) == "tie(1, 2)");
  CHECK(mesh.NameOf(AxisSet::Of(Axis::kTp)) == "tp");
  const Group three = Group::OfHolders({0, 2, 3});
  CHECK(mesh.GroupSize(three) == 3);
  for (std::int64_t rank : mesh.Group(1, three)) {
    const Ranks group = mesh.Group(rank, three);
    CHECK(group[static_cast<size_t>(mesh.IndexInGroup(mesh.CoordinatesOf(rank), three))] == rank);
  }
}

}  // namespace engine::plan

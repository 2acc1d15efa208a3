#include "engine/plan/snapshot.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/plan/plans.h"

namespace engine::plan {
namespace {

// Of each rank, in order: the host that has its state, whose state that is there, and whether the rank sends it.
using Keepers = std::vector<std::vector<std::int64_t>>;

Keepers KeepersOf(const std::vector<std::string>& sets, std::int64_t ranks_per_host) {
  const Plan plan = TinyPlan(false, sets);
  Keepers keepers;
  for (std::int64_t rank = 0; rank < plan.mesh.world(); ++rank) {
    const std::optional<Keeper> keeper = KeeperOf(plan, rank, ranks_per_host);
    keepers.push_back(!keeper
                          ? std::vector<std::int64_t>{}
                          : std::vector<std::int64_t>{keeper->host, keeper->rank, keeper->is_sent ? 1 : 0});
  }
  return keepers;
}

}  // namespace

TEST_CASE("keepers: a state that is on one host alone is sent half of the hosts further") {
  const std::vector<std::string> zero = {"parallelism.dp=4", "parallelism.zero_stage=1"};
  CHECK(KeepersOf(zero, 1) == Keepers{{2, 0, 1}, {3, 1, 1}, {0, 2, 1}, {1, 3, 1}});
  CHECK(KeepersOf(zero, 2) == Keepers{{1, 0, 1}, {1, 1, 1}, {0, 2, 1}, {0, 3, 1}});
  CHECK(KeepersOf(zero, 4) == Keepers{{}, {}, {}, {}});  // one host
  CHECK(KeepersOf({"parallelism.tp=2"}, 1) == Keepers{{1, 0, 1}, {0, 1, 1}});
  CHECK(KeepersOf({"parallelism.pp=3"}, 1) == Keepers{{1, 0, 1}, {2, 1, 1}, {0, 2, 1}});
}

TEST_CASE(
    "keepers: without ZeRO another host's data-parallel copy has the state; one on the same host does not "
    "help") {
  // Ranks 0 and 2, and 1 and 3, differ in dp alone.
  const std::vector<std::string> layout = {"parallelism.tp=2", "parallelism.dp=2"};
  CHECK(KeepersOf(layout, 2) == Keepers{{1, 2, 0}, {1, 3, 0}, {0, 0, 0}, {0, 1, 0}});
  const std::vector<std::string> stages = {"parallelism.pp=2", "parallelism.dp=2"};
  CHECK(KeepersOf(stages, 2) == Keepers{{1, 0, 1}, {1, 1, 1}, {0, 2, 1}, {0, 3, 1}});
}

}  // namespace engine::plan

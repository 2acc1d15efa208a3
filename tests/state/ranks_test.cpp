// Ranks of one process that have devices of their own.
#include "engine/state/ranks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/core_limit.h"
#include "engine/base/status.h"
#include "tests/plan/plans.h"
#include "tests/train/testing.h"

namespace engine::state {
namespace {

class FullBackend final : public backend::cpu::CpuBackend {
 public:
  FullBackend() : CpuBackend(1) {}
  absl::StatusOr<std::byte*> AllocateArena(std::int64_t) override {
    return ResourceExhausted("the device is full");
  }
};

}  // namespace

TEST_CASE(
    "ranks: where devices are too small, an error says so, and nothing is taken down that was not made") {
  const plan::Plan plan = plan::TinyPlan(true, {"parallelism.tp=2"});
  Device device = train::testing::CpuDevice();
  device.enter = [](std::int64_t) { return absl::OkStatus(); };
  device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<FullBackend>(); };
  const absl::StatusOr<std::unique_ptr<Ranks>> ranks = Ranks::Create(plan, device, 0);
  REQUIRE(!ranks.ok());
  CHECK(Message(ranks.status()).find("the device is full") != std::string::npos);
}

TEST_CASE(
    "ranks: the host's threads are those that the device grants a rank, or shared by a process's ranks") {
  const plan::Plan plan = plan::TinyPlan(true, {"parallelism.tp=2"});
  for (const int granted : {0, 3}) {
    Device device = train::testing::CpuDevice();
    device.host_threads = granted;
    const absl::StatusOr<std::unique_ptr<Ranks>> ranks = Ranks::Create(plan, device, 0);
    REQUIRE(ranks.ok());
    REQUIRE((*ranks)->executors().size() == 2);
    for (const auto& executor : (*ranks)->executors())
      CHECK(executor->host_threads() == (granted > 0 ? granted : std::max(1, CoresOfProcess() / 2)));
  }
}

}  // namespace engine::state

// Ranks of one process that have devices of their own.
#include "engine/state/ranks.h"

#include <doctest/doctest.h>

#include <memory>

#include "engine/backend/cpu/cpu_backend.h"
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

}  // namespace engine::state

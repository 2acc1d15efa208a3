// Against a library of our own in NVML's place (libraries/fake_nvml.cpp): no GPU is needed.
#include "engine/health/nvml.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/health/xid_watch.h"

namespace engine::health {
namespace {

std::unique_ptr<Gpu> OpenFake() {
  absl::StatusOr<std::unique_ptr<Gpu>> gpu = Gpu::Open("GPU-fake", ENGINE_FAKE_NVML);
  REQUIRE_MESSAGE(gpu.ok(), Message(gpu.status()));
  return *std::move(gpu);
}

}  // namespace

TEST_CASE("nvml: clock, temperature, power and what slows a GPU") {
  const absl::StatusOr<GpuHealth> health = OpenFake()->Health();
  REQUIRE_MESSAGE(health.ok(), Message(health.status()));
  CHECK(health->clock_mhz == 1410);
  CHECK(health->most_clock_mhz == 1980);
  CHECK(health->temperature_c == 88);
  CHECK(health->power_w == doctest::Approx(411.6));
  CHECK(health->Text() == "1410 of 1980 MHz, 88 °C, 412 W, slowed by its power limit and heat");
  CHECK(GpuHealth{.clock_mhz = 1980, .most_clock_mhz = 1980, .temperature_c = 40, .power_w = 100}.Text() ==
        "1980 of 1980 MHz, 40 °C, 100 W");
}

TEST_CASE("nvml: errors come one by one, and those of the GPU are told from the program's") {
  setenv("FAKE_NVML_XIDS", "31,79,999", 1);
  std::mutex mutex;
  std::vector<Xid> seen;
  {
    const XidWatch watch(OpenFake(), [&](const Xid& xid) {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.push_back(xid);
    });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    for (std::size_t count = 0; count < 3 && std::chrono::steady_clock::now() < deadline;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard<std::mutex> lock(mutex);
      count = seen.size();
    }
  }
  REQUIRE(seen.size() == 3);
  CHECK(seen[0].Text() == "XID 31 (a kernel read or wrote where there is no memory)");
  CHECK(!seen[0].is_fatal);
  CHECK(seen[1].Text() == "XID 79 (the GPU has fallen off the bus)");
  CHECK(seen[1].is_fatal);
  CHECK(seen[2].Text() == "XID 999");
  CHECK(!seen[2].is_fatal);
}

TEST_CASE("nvml: a UUID is written as nvidia-smi writes it") {
  CHECK(UuidOf("0123456789abcdef0123456789abcdef") == "GPU-01234567-89ab-cdef-0123-456789abcdef");
}

TEST_CASE("nvml: where it is missing, does not start or knows no such GPU, the reason is said") {
  CHECK(absl::IsNotFound(Gpu::Open("GPU-fake", "libno-such-nvml.so.1").status()));
  const std::string library = ENGINE_FAKE_NVML;
  CHECK(Message(Gpu::Open("GPU-other", library).status()) == library + " knows no GPU GPU-other: Not Found");
  setenv("FAKE_NVML_BROKEN", "1", 1);
  CHECK(Message(Gpu::Open("GPU-fake", library).status()) == library + " cannot be used: Driver Not Loaded");
  unsetenv("FAKE_NVML_BROKEN");
}

}  // namespace engine::health

// The CPU backend with a look inside: counts arenas, guards the bytes after them, fails or calls back on
// demand.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/world.h"
#include "engine/state/ranks.h"

namespace engine::executor::testing {

// What a test may ask of one rank's backend, and what it learns.
struct Probe {
  int arenas = 0;                         // calls of AllocateArena
  std::int64_t arena_bytes = 0;           // of the last
  std::atomic<std::int64_t> launches{0};  // kernels run so far
  std::function<absl::Status(std::int64_t launch, const backend::KernelContext&)>
      before_launch;     // an error is the launch's
  bool guarded = false;  // set before Create: pages of a pattern around the arena

  // The bytes around the arena are still what they were.
  bool GuardsAreWhole() const {
    const auto whole = [](const std::byte* from) {
      return std::all_of(from, from + kGuardBytes, [](std::byte byte) { return byte == kGuard; });
    };
    return whole(memory.get()) && whole(memory.get() + kGuardBytes + arena_bytes);
  }

  static constexpr std::byte kGuard{0xA5};
  static constexpr std::int64_t kGuardBytes = 4096;
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> memory;  // guard, arena, guard
};

class WrappedLaunch final : public backend::LaunchAround {
 public:
  WrappedLaunch(std::unique_ptr<backend::Launch> launch, Probe* probe)
      : LaunchAround(std::move(launch)), probe_(*probe) {}
  absl::Status Run(const backend::KernelContext& context) override {
    const std::int64_t launch = probe_.launches.fetch_add(1);
    if (probe_.before_launch) RETURN_IF_ERROR(probe_.before_launch(launch, context));
    return LaunchAround::Run(context);
  }

 private:
  Probe& probe_;
};

class WrappedBackend final : public backend::cpu::CpuBackend {
 public:
  WrappedBackend(int threads, Probe* probe) : CpuBackend(threads), probe_(*probe) {}

  absl::StatusOr<std::byte*> AllocateArena(std::int64_t bytes) override {
    ++probe_.arenas;
    probe_.arena_bytes = bytes;
    if (!probe_.guarded) return CpuBackend::AllocateArena(bytes);
    const std::int64_t whole = bytes + 2 * Probe::kGuardBytes;
    probe_.memory.reset(
        static_cast<std::byte*>(::operator new(static_cast<size_t>(whole), Probe::kAlignment)));
    std::memset(probe_.memory.get(), std::to_integer<int>(Probe::kGuard), static_cast<size_t>(whole));
    std::byte* arena = probe_.memory.get() + Probe::kGuardBytes;
    std::memset(arena, 0, static_cast<size_t>(bytes));
    return arena;
  }
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs args) override {
    ASSIGN_OR_RETURN(std::unique_ptr<backend::Launch> launch, CpuBackend::Prepare(std::move(args)));
    return std::make_unique<WrappedLaunch>(std::move(launch), &probe_);
  }

 private:
  Probe& probe_;
};

// A CPU device whose ranks are watched. The probes must outlive the ranks and there must be one for each.
inline state::Device ProbedDevice(std::vector<Probe>* probes) {
  const auto world = std::make_shared<backend::cpu::World>();
  state::Device device;
  device.profile = backend::cpu::CpuBackend::CpuProfile();
  device.make_backend = [probes](std::int64_t rank, std::int64_t) {
    return std::make_unique<WrappedBackend>(1, &(*probes)[static_cast<size_t>(rank)]);
  };
  device.make_communicator = [world](std::int64_t rank) {
    return std::make_unique<backend::cpu::CpuCommunicator>(world.get(), rank);
  };
  device.abort = [world] { world->Abort(); };
  return device;
}

}  // namespace engine::executor::testing

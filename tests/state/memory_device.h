// A device whose ranks have memory and compute nothing: for states in formats that the CPU has no kernels for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/status.h"
#include "engine/state/ranks.h"

namespace engine::train::testing {

class NoLaunch final : public backend::Launch {
 public:
  absl::Status Run(const backend::KernelContext&) override {
    return Internal("this backend computes nothing");
  }
};

class MemoryBackend final : public backend::cpu::CpuBackend {
 public:
  MemoryBackend() : CpuBackend(1) {}
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::LaunchArgs) override {
    return std::make_unique<NoLaunch>();
  }
};

class MemoryCommunicator final : public backend::Communicator {
 public:
  absl::StatusOr<std::unique_ptr<backend::Launch>> Prepare(backend::CollectiveArgs) override {
    return std::make_unique<NoLaunch>();
  }
  absl::StatusOr<std::int64_t> Send(std::int64_t, std::int32_t, const std::byte*, std::int64_t, std::int32_t,
                                    std::int64_t) override {
    return Internal("this communicator sends nothing");
  }
  absl::Status WaitSent(std::int64_t, std::int32_t, std::int64_t) override { return Internal("nor waits"); }
  absl::Status Receive(std::int64_t, std::int32_t, std::byte*, std::int64_t, std::int32_t) override {
    return Internal("nor receives");
  }
};

inline state::Device MemoryDevice() {
  state::Device device;
  device.profile = backend::cpu::CpuBackend::CpuProfile();
  device.make_backend = [](std::int64_t, std::int64_t) { return std::make_unique<MemoryBackend>(); };
  device.make_communicator = [](std::int64_t) { return std::make_unique<MemoryCommunicator>(); };
  device.abort = [] {};
  return device;
}

}  // namespace engine::train::testing

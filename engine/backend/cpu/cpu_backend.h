// Memory and kernels of one virtual rank on the CPU, float32.
#pragma once

#include <memory>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/thread_pool.h"

namespace engine::backend::cpu {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  plan::DeviceProfile Profile() const override { return CpuProfile(); }
  absl::StatusOr<std::byte*> AllocateArena(std::int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Launch>> Prepare(LaunchArgs args) override;
  absl::Status Upload(std::byte* arena, const void* host, std::int64_t bytes) override;
  absl::Status Download(void* host, const std::byte* arena, std::int64_t bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  // Bytes that AllocateArena was asked for; 0 before.
  std::int64_t arena_bytes() const { return arena_bytes_; }

  static plan::DeviceProfile CpuProfile();

 private:
  std::byte* arena_ = nullptr;
  std::int64_t arena_bytes_ = 0;
  ThreadPool pool_;
  ParallelFor parallel_for_;
};

}  // namespace engine::backend::cpu

// Memory and kernels of one virtual rank on the CPU, float32.
#pragma once

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/thread_pool.h"

namespace engine::backend::cpu {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  plan::DeviceProfile Profile() const override { return CpuProfile(); }
  absl::StatusOr<std::byte*> AllocateArena(std::int64_t bytes) override;
  absl::StatusOr<std::byte*> AllocateHost(std::int64_t bytes) override;
  std::unique_ptr<Launch> PrepareHostCopy(const HostCopyArgs& args) override;
  absl::StatusOr<std::byte*> AllocateSnapshot(std::int64_t bytes) override;
  absl::Status PinSnapshot(std::byte*, std::int64_t) override { return absl::OkStatus(); }
  absl::Status BeginSnapshot(std::span<const SnapshotCopy> at_once,
                             std::span<const SnapshotCopy> beside) override;
  absl::Status AwaitSnapshot() override { return FinishSnapshot(); }
  absl::Status FinishSnapshot() override;
  absl::StatusOr<std::unique_ptr<Launch>> Prepare(LaunchArgs args) override;
  absl::Status Upload(std::byte* arena, const void* host, std::int64_t bytes) override;
  absl::Status Download(void* host, const std::byte* arena, std::int64_t bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::Status Write(std::byte* arena, const void* host, std::int64_t bytes) override {
    return Upload(arena, host, bytes);
  }
  absl::Status Copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    return Upload(to, from, bytes);
  }
  absl::Status Stage(std::byte* arena, const void* host, std::int64_t bytes) override {
    return Upload(arena, host, bytes);
  }
  absl::Status TakeStaged(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    return Upload(to, from, bytes);
  }
  absl::StatusOr<std::int64_t> Read(const std::byte* arena, std::int64_t bytes) override;
  absl::Status NoteTime(Stamp stamp) override;
  absl::StatusOr<std::int64_t> ReadTimes() override;
  absl::Status WaitRead(std::int64_t ticket, void* host) override;
  absl::Status PrepareHashes(std::int64_t places) override;
  absl::Status Hash(std::span<const std::byte> bytes, std::int32_t stream, std::int64_t place) override;
  absl::StatusOr<std::int64_t> ReadHashes(std::int64_t count) override;
  absl::StatusOr<bool> AllFinite(const TensorView& view) override;
  absl::StatusOr<std::int64_t> Mark(std::int32_t stream) override;
  absl::StatusOr<double> ElapsedMs(std::int64_t from, std::int64_t to) override;

  // Bytes that AllocateArena was asked for; 0 before.
  std::int64_t arena_bytes() const { return arena_bytes_; }

  static plan::DeviceProfile CpuProfile();

 private:
  std::byte* arena_ = nullptr;
  std::int64_t arena_bytes_ = 0;
  std::byte* host_ = nullptr;
  std::int64_t host_bytes_ = 0;
  std::byte* snapshot_ = nullptr;
  std::int64_t snapshot_bytes_ = 0;
  std::future<void> touching_;  // its pages, for the first time
  std::mutex copying_mutex_;
  std::shared_future<void> copying_;           // the snapshot that was begun last, and those before it
  std::vector<std::vector<std::byte>> reads_;  // by ticket; empty once taken
  std::vector<std::uint64_t> hashes_;          // by place
  std::array<std::int64_t, kStamps> times_ns_ = {};
  std::vector<std::chrono::steady_clock::time_point> marks_;
  ThreadPool pool_;
  ParallelFor parallel_for_;
};

}  // namespace engine::backend::cpu

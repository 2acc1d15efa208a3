// Memory and kernels of one rank on one GPU. Launches go to one stream, staged inputs to a second one, copies of the state to a third.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/device/device.h"

namespace engine::backend::cuda {

class CudaBackend final : public Backend {
 public:
  // Opens the GPU and makes its streams.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const DeviceOptions& options);
  ~CudaBackend() override;

  plan::DeviceProfile Profile() const override;
  absl::StatusOr<std::byte*> AllocateArena(std::int64_t bytes) override;
  absl::StatusOr<std::byte*> AllocateHost(std::int64_t bytes) override;  // pinned
  std::unique_ptr<Launch> PrepareHostCopy(const HostCopyArgs& args) override;
  absl::StatusOr<std::byte*> AllocateSnapshot(std::int64_t bytes) override;  // pinned
  absl::Status PinSnapshot(std::byte* memory, std::int64_t bytes) override;
  void UnpinSnapshot() override;
  absl::Status BeginSnapshot(std::span<const SnapshotCopy> at_once,
                             std::span<const SnapshotCopy> beside) override;
  absl::Status AwaitSnapshot() override;
  absl::Status FinishSnapshot() override;
  absl::Status ClearArena() override;
  absl::StatusOr<std::unique_ptr<Launch>> Prepare(LaunchArgs args) override;
  absl::Status Upload(std::byte* arena, const void* host, std::int64_t bytes) override;
  absl::Status Download(void* host, const std::byte* arena, std::int64_t bytes) override;
  absl::Status Synchronize() override;

  absl::StatusOr<std::int64_t> Signal(std::int32_t stream) override;
  absl::Status Await(std::int32_t stream, std::int64_t ticket) override;

  bool asynchronous() const override { return true; }
  absl::Status Write(std::byte* arena, const void* host, std::int64_t bytes) override;
  absl::Status Copy(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  absl::Status Stage(std::byte* arena, const void* host, std::int64_t bytes) override;
  absl::Status TakeStaged(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  absl::StatusOr<std::int64_t> Read(const std::byte* arena, std::int64_t bytes) override;
  absl::Status WaitRead(std::int64_t ticket, void* host) override;
  absl::Status PrepareHashes(std::int64_t places) override;
  absl::Status Hash(std::span<const std::byte> bytes, std::int32_t stream, std::int64_t place) override;
  absl::StatusOr<std::int64_t> ReadHashes(std::int64_t count) override;
  absl::Status NoteTime(Stamp stamp) override;
  absl::StatusOr<std::int64_t> ReadTimes() override;
  // One CUDA graph.
  absl::StatusOr<std::unique_ptr<Launch>> Record(const std::function<absl::Status()>& body) override;
  absl::StatusOr<bool> AllFinite(const TensorView& view) override;
  absl::StatusOr<std::int64_t> Mark(std::int32_t stream) override;
  absl::StatusOr<double> ElapsedMs(std::int64_t from, std::int64_t to) override;

  Device& device() { return *device_; }
  cudaStream_t snapshot_stream() const { return snapshot_stream_; }  // null: there are no snapshots
  // Empty before AllocateArena. One allocation of its own (cudaMalloc).
  std::span<std::byte> arena() const { return {arena_, static_cast<std::size_t>(arena_bytes_)}; }
  // Makes the calling thread one of this GPU's.
  absl::Status Enter() const;
  // Asked again and again while results are waited for; an error ends the wait. For what the GPU would wait
  // for in vain.
  void WatchHealth(std::function<absl::Status()> health) { health_ = std::move(health); }
  // From now on no result counts, and to wait for one is an error: the GPU goes on without what it has waited for. From any thread.
  void Spoil() { is_spoilt_ = true; }
  // Waits until it is done: `state` says cudaErrorNotReady until then. Error: that of `state`, or of health.
  absl::Status Await(const std::function<cudaError_t()>& state) const;
  // Bytes of the GPU's memory: free, and taken by all processes together.
  absl::StatusOr<std::int64_t> FreeBytes() const;
  absl::StatusOr<std::int64_t> UsedBytes() const;

 private:
  // Results on their way to the host.
  struct ReadSlot {
    cudaEvent_t done = nullptr;
    std::int64_t bytes = 0;
    std::byte* memory = nullptr;  // pinned
    std::int64_t room = 0;
  };
  static constexpr std::int64_t kReadSlots = 8;

  // Pinned memory on the way to the device.
  struct UploadBuffer {
    std::byte* memory = nullptr;
    cudaEvent_t free = nullptr;  // its last bytes have arrived
  };
  static constexpr std::int64_t kUploadBytes = std::int64_t{8} << 20;

  explicit CudaBackend(int index) : index_(index) {}
  absl::Status Init(const DeviceOptions& options);
  absl::Status MakeSnapshotStream();
  absl::Status AwaitEvent(cudaEvent_t event) const;
  absl::Status UploadPinned(std::byte* arena, const std::byte* host, std::int64_t bytes);

  const int index_;
  std::unique_ptr<Device> device_;
  std::byte* arena_ = nullptr;
  std::int64_t arena_bytes_ = 0;
  std::byte* host_ = nullptr;               // pinned
  std::byte* snapshot_ = nullptr;           // pinned
  std::byte* pinned_ = nullptr;             // of another's making, for snapshots too
  cudaStream_t snapshot_stream_ = nullptr;  // copies to it, beside all others; null: there are none
  cudaEvent_t snapshot_begins_ = nullptr;   // what is copied is made
  cudaEvent_t snapshot_done_ = nullptr;
  std::array<ReadSlot, kReadSlots> reads_;
  std::int64_t next_read_ = 0;
  std::int64_t most_read_ =
      256;  // bytes: the largest read so far, for which every slot has room from its next read on
  std::array<UploadBuffer, 2> uploads_;  // made by the first large upload
  std::byte* stage_memory_ = nullptr;    // pinned
  std::int64_t stage_bytes_ = 0;
  cudaEvent_t staged_ = nullptr;  // the last staged copy has arrived
  cudaEvent_t taken_ = nullptr;   // the last TakeStaged has read it
  int* finite_ = nullptr;         // device flag of AllFinite
  // On the device, in stream order with the iterations, of which the next may already be under way when the
  // host reads: an event that a graph records again would be lost then.
  std::int64_t* times_ns_ = nullptr;  // [kStamps]
  std::uint64_t* hashes_ = nullptr;   // on the device, by place
  std::function<absl::Status()> health_;
  std::atomic<bool> is_spoilt_ = false;
  std::vector<cudaEvent_t> marks_;
  // Of Signal, made as they are needed and used again in turn: a step waits for steps of its own and the last
  // microbatches in flight, far fewer signals back than this.
  static constexpr std::size_t kSignals = std::size_t{1} << 16;
  std::vector<cudaEvent_t> signals_;
  std::int64_t next_signal_ = 0;
};

}  // namespace engine::backend::cuda

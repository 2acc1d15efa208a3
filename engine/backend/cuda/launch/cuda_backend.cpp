#include "engine/backend/cuda/launch/cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/backend/cuda/attention/sm90a.h"
#include "engine/backend/cuda/kernels/hash.h"
#include "engine/backend/cuda/kernels/optimizer.h"
#include "engine/backend/cuda/kernels/time.h"
#include "engine/backend/cuda/kernels/write.h"
#include "engine/backend/cuda/launch/nvtx_range.h"
#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/profile/profile.h"
#include "engine/base/parallel.h"
#include "engine/base/units.h"

namespace engine::backend::cuda {
namespace {

class CudaLaunch final : public Launch {
 public:
  CudaLaunch(Enqueue enqueue, cudaStream_t stream, const plan::Instruction& instruction)
      : enqueue_(std::move(enqueue)),
        stream_(stream),
        label_(instruction.name, std::string(instruction.kernel())) {}

  absl::Status Run(const KernelContext& context) override {
    const NvtxRange range(label_);
    return enqueue_(stream_, context);
  }

 private:
  Enqueue enqueue_;
  cudaStream_t stream_;
  const NvtxLabel label_;
};

class HostCopyLaunch final : public Launch {
 public:
  HostCopyLaunch(const HostCopyArgs& args, cudaStream_t stream) : args_(args), stream_(stream) {}
  absl::Status Run(const KernelContext&) override {
    const bool out = args_.direction == plan::HostCopy::Direction::kToHost;
    return ToStatus(cudaMemcpyAsync(out ? args_.host : args_.arena, out ? args_.arena : args_.host,
                                    static_cast<std::size_t>(args_.bytes),
                                    out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream_),
                    "a copy to or from the host's memory");
  }

 private:
  const HostCopyArgs args_;
  const cudaStream_t stream_;
};

class GraphLaunch final : public Launch {
 public:
  GraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {}
  ~GraphLaunch() override { cudaGraphExecDestroy(graph_); }

  absl::Status Run(const KernelContext&) override {
    RETURN_IF_CUDA_ERROR(cudaGraphLaunch(graph_, stream_));
    return absl::OkStatus();
  }

 private:
  cudaGraphExec_t graph_;
  cudaStream_t stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const DeviceOptions& options) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(options.index));
  RETURN_IF_ERROR(backend->Init(options));
  return backend;
}

absl::Status CudaBackend::Init(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(device_, Device::Open(options));
  for (ReadSlot& slot : reads_) {
    RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
  }
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&staged_, cudaEventDisableTiming));
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&taken_, cudaEventDisableTiming));
  RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&finite_), sizeof(int)));
  RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&times_ns_), kStamps * sizeof(std::int64_t)));
  return absl::OkStatus();
}

CudaBackend::~CudaBackend() {
  cudaDeviceSynchronize();
  for (cudaEvent_t mark : marks_) cudaEventDestroy(mark);
  for (cudaEvent_t signal : signals_) cudaEventDestroy(signal);
  for (const ReadSlot& slot : reads_) {
    if (slot.done != nullptr) cudaEventDestroy(slot.done);
  }
  if (staged_ != nullptr) cudaEventDestroy(staged_);
  if (taken_ != nullptr) cudaEventDestroy(taken_);
  for (const UploadBuffer& buffer : uploads_) {
    if (buffer.free != nullptr) cudaEventDestroy(buffer.free);
    cudaFreeHost(buffer.memory);
  }
  for (const ReadSlot& slot : reads_) cudaFreeHost(slot.memory);
  cudaFreeHost(stage_memory_);
  cudaFree(finite_);
  cudaFree(times_ns_);
  cudaFree(hashes_);
  cudaFree(arena_);
  cudaFreeHost(host_);
  cudaFreeHost(snapshot_);
  UnpinSnapshot();
  if (snapshot_begins_ != nullptr) cudaEventDestroy(snapshot_begins_);
  if (snapshot_done_ != nullptr) cudaEventDestroy(snapshot_done_);
  if (snapshot_stream_ != nullptr) cudaStreamDestroy(snapshot_stream_);
}

absl::Status CudaBackend::Enter() const {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(index_));
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CudaBackend::FreeBytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(free);
}

absl::StatusOr<std::int64_t> CudaBackend::UsedBytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(total - free);
}

plan::DeviceProfile CudaBackend::Profile() const {
  const int major = device_->properties().major;
  return CudaProfile(device_->deterministic(), {major, major == 9 && HasAttentionSm90a()});
}

absl::StatusOr<std::byte*> CudaBackend::AllocateArena(std::int64_t bytes) {
  ENGINE_CHECK(arena_ == nullptr, "a rank has one arena");
  std::size_t free = 0;
  std::size_t total = 0;
  RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
  if (cudaMalloc(reinterpret_cast<void**>(&arena_), static_cast<std::size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return ResourceExhausted("the arena needs {}, but GPU {} has {} free of {}", FormatBytes(bytes), index_,
                             FormatBytes(static_cast<std::int64_t>(free)),
                             FormatBytes(static_cast<std::int64_t>(total)));
  }
  arena_bytes_ = bytes;
  device_->BorrowMemory(arena());
  return arena_;
}

absl::StatusOr<std::byte*> CudaBackend::AllocateHost(std::int64_t bytes) {
  ENGINE_CHECK(host_ == nullptr, "a rank has one memory of the host");
  if (cudaMallocHost(reinterpret_cast<void**>(&host_), static_cast<std::size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return ResourceExhausted(
        "{} of this host's memory, in which activations wait (offload.activation_layers), cannot be "
        "pinned; fewer layers need less",
        FormatBytes(bytes));
  }
  return host_;
}

std::unique_ptr<Launch> CudaBackend::PrepareHostCopy(const HostCopyArgs& args) {
  return std::make_unique<HostCopyLaunch>(args, device_->stream(plan::kHostStream));
}

absl::StatusOr<std::byte*> CudaBackend::AllocateSnapshot(std::int64_t bytes) {
  ENGINE_CHECK(snapshot_ == nullptr, "a rank has one snapshot");
  if (cudaMallocHost(reinterpret_cast<void**>(&snapshot_), static_cast<std::size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return ResourceExhausted(
        "{} of this host's memory, for a copy of the state from which checkpoints are written beside "
        "training, cannot be pinned; "
        "checkpoint.background = false needs none",
        FormatBytes(bytes));
  }
  RETURN_IF_ERROR(MakeSnapshotStream());
  return snapshot_;
}

void CudaBackend::UnpinSnapshot() {
  if (pinned_ != nullptr) cudaHostUnregister(std::exchange(pinned_, nullptr));
}

absl::Status CudaBackend::PinSnapshot(std::byte* memory, std::int64_t bytes) {
  ENGINE_CHECK(pinned_ == nullptr, "a rank has one memory that others made");
  if (cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();
    return ResourceExhausted("{} of this host's memory, for copies of the state, cannot be pinned",
                             FormatBytes(bytes));
  }
  pinned_ = memory;
  return MakeSnapshotStream();
}

absl::Status CudaBackend::MakeSnapshotStream() {
  if (snapshot_stream_ != nullptr) return absl::OkStatus();
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&snapshot_stream_, cudaStreamNonBlocking));
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&snapshot_begins_, cudaEventDisableTiming));
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&snapshot_done_, cudaEventDisableTiming));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(snapshot_done_, snapshot_stream_));
  return absl::OkStatus();
}

absl::Status CudaBackend::BeginSnapshot(std::span<const SnapshotCopy> at_once,
                                        std::span<const SnapshotCopy> beside) {
  const auto copy = [](std::span<const SnapshotCopy> copies, cudaStream_t stream) -> absl::Status {
    for (const SnapshotCopy& one : copies) {
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(one.host, one.arena, static_cast<std::size_t>(one.bytes),
                                           cudaMemcpyDeviceToHost, stream));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(copy(at_once, device_->compute()));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(snapshot_begins_, device_->compute()));
  RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(snapshot_stream_, snapshot_begins_, 0));
  RETURN_IF_ERROR(copy(beside, snapshot_stream_));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(snapshot_done_, snapshot_stream_));
  return absl::OkStatus();
}

// Recorded, it waits for the event as it was last recorded when the graph runs, not when it was captured.
absl::Status CudaBackend::AwaitSnapshot() {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(device_->compute(), &capturing));
  const unsigned flags =
      capturing == cudaStreamCaptureStatusActive ? cudaEventWaitExternal : cudaEventWaitDefault;
  RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(device_->compute(), snapshot_done_, flags));
  return absl::OkStatus();
}

absl::Status CudaBackend::FinishSnapshot() {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(index_));  // the caller may be a thread that never was here
  return Await([this] { return cudaEventQuery(snapshot_done_); });
}

absl::Status CudaBackend::ClearArena() {
  device_->BorrowMemory({});
  RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(arena_, 0, static_cast<std::size_t>(arena_bytes_), device_->compute()));
  return Synchronize();
}

absl::StatusOr<std::unique_ptr<Launch>> CudaBackend::Prepare(LaunchArgs args) {
  const KernelEntry* entry = FindKernel(args.instruction->kernel());
  if (entry == nullptr) {
    return Internal("the CUDA executor has no kernel '{}' (of {})", args.instruction->kernel(),
                    args.instruction->name);
  }
  if (!args.part.empty() && !AddsPart(args.instruction->kernel())) {
    return Internal("{}: the kernel '{}' adds no part of another rank", args.instruction->name,
                    args.instruction->kernel());
  }
  absl::StatusOr<Enqueue> enqueue = entry->prepare(*device_, args);
  if (!enqueue.ok()) return WithContext(enqueue.status(), args.instruction->name);
  return std::make_unique<CudaLaunch>(*std::move(enqueue), device_->compute(), *args.instruction);
}

// The driver takes pageable memory through pinned memory of its own with this one thread, at the speed of one
// core's copies. Large uploads go through ours, which several threads fill.
absl::Status CudaBackend::Upload(std::byte* arena, const void* host, std::int64_t bytes) {
  if (bytes >= kUploadBytes) return UploadPinned(arena, static_cast<const std::byte*>(host), bytes);
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(arena, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice,
                                       device_->compute()));
  return Synchronize();
}

absl::Status CudaBackend::UploadPinned(std::byte* arena, const std::byte* host, std::int64_t bytes) {
  constexpr int kThreads = 4;
  constexpr std::size_t kAtOnce = kUploadBytes / 16;
  if (uploads_[0].memory == nullptr) {
    for (UploadBuffer& buffer : uploads_) {
      RETURN_IF_CUDA_ERROR(cudaMallocHost(reinterpret_cast<void**>(&buffer.memory), kUploadBytes));
      RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&buffer.free, cudaEventDisableTiming));
    }
  }
  std::size_t next = 0;
  for (std::int64_t done = 0; done < bytes; done += kUploadBytes) {
    const UploadBuffer& buffer = uploads_[next++ % uploads_.size()];
    const auto now = static_cast<std::size_t>(std::min(kUploadBytes, bytes - done));
    RETURN_IF_CUDA_ERROR(cudaEventSynchronize(buffer.free));
    ParallelPieces(kThreads, now, kAtOnce, [&](std::size_t first, std::size_t last) {
      std::memcpy(buffer.memory + first, host + done + first, last - first);
    });
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(arena + done, buffer.memory, now, cudaMemcpyHostToDevice, device_->compute()));
    RETURN_IF_CUDA_ERROR(cudaEventRecord(buffer.free, device_->compute()));
  }
  return Synchronize();
}

absl::Status CudaBackend::Download(void* host, const std::byte* arena, std::int64_t bytes) {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(host, arena, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost,
                                       device_->compute()));
  return Synchronize();
}

absl::Status CudaBackend::Synchronize() {
  const cudaStream_t stream = device_->compute();
  if (!health_) return ToStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return Await([stream] { return cudaStreamQuery(stream); });
}

absl::StatusOr<std::int64_t> CudaBackend::Signal(std::int32_t stream) {
  const std::int64_t ticket = next_signal_++;
  const std::size_t slot = static_cast<std::size_t>(ticket) % kSignals;
  if (slot == signals_.size()) {
    signals_.push_back(nullptr);
    RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&signals_.back(), cudaEventDisableTiming));
  }
  RETURN_IF_CUDA_ERROR(cudaEventRecord(signals_[slot], device_->stream(stream)));
  return ticket;
}

absl::Status CudaBackend::Await(std::int32_t stream, std::int64_t ticket) {
  ENGINE_CHECK(ticket >= 0 && next_signal_ - ticket <= static_cast<std::int64_t>(kSignals),
               "signal {} of {} is forgotten", ticket, next_signal_);
  RETURN_IF_CUDA_ERROR(
      cudaStreamWaitEvent(device_->stream(stream), signals_[static_cast<std::size_t>(ticket) % kSignals], 0));
  return absl::OkStatus();
}

absl::Status CudaBackend::Write(std::byte* arena, const void* host, std::int64_t bytes) {
  ENGINE_CHECK(bytes <= kWriteBytes, "{} bytes are too many to write", bytes);
  WriteBytes(arena, host, bytes, device_->compute());
  return ToStatus(cudaGetLastError(), "write");
}

absl::Status CudaBackend::Copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                                       device_->compute()));
  return absl::OkStatus();
}

absl::Status CudaBackend::Stage(std::byte* arena, const void* host, std::int64_t bytes) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(index_));  // the caller may be a thread that never was here
  RETURN_IF_ERROR(AwaitEvent(staged_));
  if (bytes > stage_bytes_) {
    cudaFreeHost(stage_memory_);
    stage_memory_ = nullptr;
    RETURN_IF_CUDA_ERROR(
        cudaMallocHost(reinterpret_cast<void**>(&stage_memory_), static_cast<std::size_t>(bytes)));
    stage_bytes_ = bytes;
  }
  std::memcpy(stage_memory_, host, static_cast<std::size_t>(bytes));
  RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(device_->copy(), taken_));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(arena, stage_memory_, static_cast<std::size_t>(bytes),
                                       cudaMemcpyHostToDevice, device_->copy()));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(staged_, device_->copy()));
  return absl::OkStatus();
}

absl::Status CudaBackend::TakeStaged(std::byte* to, const std::byte* from, std::int64_t bytes) {
  RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(device_->compute(), staged_));
  RETURN_IF_ERROR(Copy(to, from, bytes));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(taken_, device_->compute()));
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CudaBackend::Read(const std::byte* arena, std::int64_t bytes) {
  const std::int64_t ticket = next_read_++ % kReadSlots;
  ReadSlot& slot = reads_[static_cast<std::size_t>(ticket)];
  slot.bytes = bytes;
  most_read_ = std::max(most_read_, bytes);
  if (slot.room < most_read_) {
    RETURN_IF_CUDA_ERROR(cudaFreeHost(std::exchange(slot.memory, nullptr)));
    slot.room = 0;
    RETURN_IF_CUDA_ERROR(
        cudaMallocHost(reinterpret_cast<void**>(&slot.memory), static_cast<std::size_t>(most_read_)));
    slot.room = most_read_;
  }
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(slot.memory, arena, static_cast<std::size_t>(bytes),
                                       cudaMemcpyDeviceToHost, device_->compute()));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(slot.done, device_->compute()));
  return ticket;
}

absl::Status CudaBackend::Await(const std::function<cudaError_t()>& state) const {
  constexpr auto kPause = std::chrono::microseconds(50);
  constexpr int kPausesOfHealth = 400;  // 20 ms
  for (int pauses = 0;; ++pauses) {
    const cudaError_t now = state();
    if (is_spoilt_) return absl::AbortedError("the run has ended");
    // Once the run has ended, a result may be made of what others have pushed since then, so it does not count.
    if (now == cudaSuccess && health_) return health_();
    if (now != cudaErrorNotReady) return ToStatus(now, "what the GPU does");
    if (pauses % kPausesOfHealth == kPausesOfHealth - 1 && health_) RETURN_IF_ERROR(health_());
    std::this_thread::sleep_for(kPause);
  }
}

absl::Status CudaBackend::AwaitEvent(cudaEvent_t event) const {
  if (!health_) return ToStatus(cudaEventSynchronize(event), "what the GPU does");
  return Await([event] { return cudaEventQuery(event); });
}

absl::Status CudaBackend::WaitRead(std::int64_t ticket, void* host) {
  const ReadSlot& slot = reads_[static_cast<std::size_t>(ticket)];
  RETURN_IF_ERROR(AwaitEvent(slot.done));
  std::memcpy(host, slot.memory, static_cast<std::size_t>(slot.bytes));
  return absl::OkStatus();
}

absl::Status CudaBackend::PrepareHashes(std::int64_t places) {
  ENGINE_CHECK(hashes_ == nullptr, "a rank has one set of hashes");
  const std::int64_t bytes = places * static_cast<std::int64_t>(sizeof(std::uint64_t));
  RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&hashes_), static_cast<std::size_t>(bytes)));
  most_read_ = std::max(most_read_, bytes);
  return absl::OkStatus();
}

absl::Status CudaBackend::Hash(std::span<const std::byte> bytes, std::int32_t stream, std::int64_t place) {
  std::uint64_t* const hash = hashes_ + place;
  RETURN_IF_CUDA_ERROR(cudaMemsetAsync(hash, 0, sizeof(*hash), device_->stream(stream)));
  AddHash(bytes, hash, device_->stream(stream));
  return ToStatus(cudaGetLastError(), "hash");
}

absl::StatusOr<std::int64_t> CudaBackend::ReadHashes(std::int64_t count) {
  return Read(reinterpret_cast<const std::byte*>(hashes_),
              count * static_cast<std::int64_t>(sizeof(std::uint64_t)));
}

absl::Status CudaBackend::NoteTime(Stamp stamp) {
  WriteTime(times_ns_ + stamp, device_->compute());
  return ToStatus(cudaGetLastError(), "write time");
}

absl::StatusOr<std::int64_t> CudaBackend::ReadTimes() {
  return Read(reinterpret_cast<const std::byte*>(times_ns_), kStamps * sizeof(std::int64_t));
}

absl::StatusOr<std::unique_ptr<Launch>> CudaBackend::Record(const std::function<absl::Status()>& body) {
  const cudaStream_t stream = device_->compute();
  RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::Status status = body();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  RETURN_IF_ERROR(status);
  RETURN_IF_CUDA_ERROR(ended);
  cudaGraphExec_t executable = nullptr;
  const cudaError_t instantiated = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  RETURN_IF_CUDA_ERROR(instantiated);
  return std::make_unique<GraphLaunch>(executable, stream);
}

absl::StatusOr<bool> CudaBackend::AllFinite(const TensorView& view) {
  if (view.dtype != DType::kF32 && view.dtype != DType::kF64 && view.dtype != DType::kBF16 &&
      view.dtype != DType::kF16) {
    return true;
  }
  cuda::AllFinite(view.data, view.dtype, view.shape.elements(), finite_, device_->compute());
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  int finite = 0;
  RETURN_IF_ERROR(Download(&finite, reinterpret_cast<const std::byte*>(finite_), sizeof(finite)));
  return finite != 0;
}

absl::StatusOr<std::int64_t> CudaBackend::Mark(std::int32_t stream) {
  cudaEvent_t mark = nullptr;
  RETURN_IF_CUDA_ERROR(cudaEventCreate(&mark));
  marks_.push_back(mark);
  RETURN_IF_CUDA_ERROR(cudaEventRecord(mark, device_->stream(stream)));
  return static_cast<std::int64_t>(marks_.size() - 1);
}

absl::StatusOr<double> CudaBackend::ElapsedMs(std::int64_t from, std::int64_t to) {
  const cudaEvent_t end = marks_[static_cast<std::size_t>(to)];
  RETURN_IF_CUDA_ERROR(cudaEventSynchronize(end));
  float ms = 0;
  RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&ms, marks_[static_cast<std::size_t>(from)], end));
  return ms;
}

}  // namespace engine::backend::cuda

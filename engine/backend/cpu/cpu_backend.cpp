#include "engine/backend/cpu/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/backend/cpu/kernel_table.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"

namespace engine::backend::cpu {
namespace {

class CpuLaunch final : public Launch {
 public:
  CpuLaunch(Kernel kernel, LaunchArgs args, const ParallelFor* parallel_for)
      : kernel_(kernel), args_(std::move(args)), parallel_for_(parallel_for) {
    if (args_.part.empty()) return;
    TensorView& input = args_.inputs[static_cast<size_t>(args_.instruction->AddedInput())];
    own_ = std::exchange(input.data, nullptr);
    sum_.resize(static_cast<size_t>(input.shape.elements()));
    input.data = sum_.data();
  }

  absl::Status Run(const KernelContext& context) override {
    if (!args_.part.empty()) AddPart();
    KernelContext with_threads = context;
    with_threads.parallel_for = parallel_for_;
    kernel_({.inputs = args_.inputs,
             .outputs = args_.outputs,
             .attributes = &args_.instruction->attributes(),
             .accumulate = args_.accumulate,
             .scratch = args_.scratch,
             .context = &with_threads});
    return absl::OkStatus();
  }

 private:
  // Not into the input, which the other rank may read.
  void AddPart() {
    const auto* const part = reinterpret_cast<const float*>(args_.PartAddress());
    const auto* const own = reinterpret_cast<const float*>(own_);
    for (size_t i = 0; i < sum_.size(); ++i) sum_[i] = own[i] + part[i];
  }

  Kernel kernel_;
  LaunchArgs args_;
  const ParallelFor* parallel_for_;
  const void* own_ = nullptr;  // the input to which a part is added, which is the sum for the kernel
  std::vector<float> sum_;
};

std::int64_t ScratchBytes(std::string_view kernel, graph::TypeSpan inputs, graph::TypeSpan outputs,
                          const graph::Attributes& attributes) {
  const KernelEntry* entry = FindKernel(kernel);
  return entry == nullptr || entry->scratch_bytes == nullptr
             ? 0
             : entry->scratch_bytes(inputs, outputs, attributes);
}

absl::StatusOr<std::byte*> MapPages(std::int64_t bytes, std::string_view what) {
  void* memory =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return ResourceExhausted("{}, {}, does not fit in this machine's memory", what, FormatBytes(bytes));
  madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

void CopyOut(std::span<const SnapshotCopy> copies) {
  for (const SnapshotCopy& copy : copies) std::memcpy(copy.host, copy.arena, static_cast<size_t>(copy.bytes));
}

class HostCopyLaunch final : public Launch {
 public:
  explicit HostCopyLaunch(const HostCopyArgs& args) : args_(args) {}
  absl::Status Run(const KernelContext&) override {
    const bool out = args_.direction == plan::HostCopy::Direction::kToHost;
    std::memcpy(out ? args_.host : args_.arena, out ? args_.arena : args_.host,
                static_cast<size_t>(args_.bytes));
    return absl::OkStatus();
  }

 private:
  const HostCopyArgs args_;
};

}  // namespace

CpuBackend::CpuBackend(int threads)
    : pool_(threads),
      parallel_for_([this](std::int64_t tasks, const std::function<void(std::int64_t)>& body) {
        pool_.ParallelFor(tasks, body);
      }) {}

CpuBackend::~CpuBackend() {
  if (touching_.valid()) touching_.wait();
  if (copying_.valid()) copying_.wait();
  if (snapshot_ != nullptr) munmap(snapshot_, static_cast<size_t>(snapshot_bytes_));
  if (arena_ != nullptr) munmap(arena_, static_cast<size_t>(arena_bytes_));
  if (host_ != nullptr) munmap(host_, static_cast<size_t>(host_bytes_));
}

plan::DeviceProfile CpuBackend::CpuProfile() {
  return {.name = "cpu",
          .scratch_bytes = ScratchBytes,
          .fuses = nullptr,
          .limits = {{"precision.compute", {"fp32"}},
                     {"precision.gradient_dtype", {"fp32"}},
                     {"precision.master_dtype", {"fp32"}},
                     {"optimizer.moment_dtype", {"fp32"}}}};
}

absl::StatusOr<std::byte*> CpuBackend::AllocateArena(std::int64_t bytes) {
  ENGINE_CHECK(arena_ == nullptr, "a rank has one arena");
  ASSIGN_OR_RETURN(arena_, MapPages(bytes, "the arena"));
  arena_bytes_ = bytes;
  return arena_;
}

absl::StatusOr<std::byte*> CpuBackend::AllocateHost(std::int64_t bytes) {
  ENGINE_CHECK(host_ == nullptr, "a rank has one memory of the host");
  ASSIGN_OR_RETURN(host_, MapPages(bytes, "what waits beside the arena"));
  host_bytes_ = bytes;
  return host_;
}

absl::StatusOr<std::byte*> CpuBackend::AllocateSnapshot(std::int64_t bytes) {
  ENGINE_CHECK(snapshot_ == nullptr, "a rank has one snapshot");
  ASSIGN_OR_RETURN(snapshot_, MapPages(bytes, "the copy of the state from which checkpoints are written"));
  snapshot_bytes_ = bytes;
  // The system finds a page at its first use, which takes longer than copying; here it does so beside the first iterations.
  touching_ = std::async(std::launch::async, [this] {
    constexpr std::int64_t kPageBytes = 4096;
    for (std::int64_t at = 0; at < snapshot_bytes_; at += kPageBytes) snapshot_[at] = std::byte{0};
  });
  return snapshot_;
}

absl::Status CpuBackend::BeginSnapshot(std::span<const SnapshotCopy> at_once,
                                       std::span<const SnapshotCopy> beside) {
  if (touching_.valid()) touching_.get();
  CopyOut(at_once);
  const std::lock_guard<std::mutex> lock(copying_mutex_);
  copying_ = std::async(std::launch::async, [before = copying_,
                                             copies = std::vector(beside.begin(), beside.end())]() mutable {
               if (before.valid()) before.wait();
               before = {};  // which holds what was before it
               CopyOut(copies);
             }).share();
  return absl::OkStatus();
}

absl::Status CpuBackend::FinishSnapshot() {
  std::unique_lock<std::mutex> lock(copying_mutex_);
  const std::shared_future<void> begun = copying_;
  lock.unlock();
  if (begun.valid()) begun.wait();
  return absl::OkStatus();
}

std::unique_ptr<Launch> CpuBackend::PrepareHostCopy(const HostCopyArgs& args) {
  return std::make_unique<HostCopyLaunch>(args);
}

absl::StatusOr<std::unique_ptr<Launch>> CpuBackend::Prepare(LaunchArgs args) {
  const KernelEntry* entry = FindKernel(args.instruction->kernel());
  if (entry == nullptr || entry->f32 == nullptr) {
    return Internal("the CPU executor has no kernel '{}' (of {})", args.instruction->kernel(),
                    args.instruction->name);
  }
  if (!args.part.empty() &&
      args.inputs[static_cast<size_t>(args.instruction->AddedInput())].dtype != DType::kF32)
    return Internal("{}: the CPU executor adds parts of fp32 alone", args.instruction->name);
  for (const auto* views : {&args.inputs, &args.outputs}) {
    for (const TensorView& view : *views) {
      if (view.dtype == DType::kF32 || view.dtype == DType::kF64 || view.dtype == DType::kI32) continue;
      if (view.dtype == DType::kE4M3) continue;  // a cache, which no other op has
      return Internal("the CPU executor has no kernel '{}' for {} (of {})", args.instruction->kernel(),
                      Name(view.dtype), args.instruction->name);
    }
  }
  return std::make_unique<CpuLaunch>(entry->f32, std::move(args), &parallel_for_);
}

absl::Status CpuBackend::Upload(std::byte* arena, const void* host, std::int64_t bytes) {
  std::memcpy(arena, host, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status CpuBackend::Download(void* host, const std::byte* arena, std::int64_t bytes) {
  std::memcpy(host, arena, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CpuBackend::Read(const std::byte* arena, std::int64_t bytes) {
  reads_.emplace_back(arena, arena + bytes);
  return static_cast<std::int64_t>(reads_.size() - 1);
}

absl::Status CpuBackend::WaitRead(std::int64_t ticket, void* host) {
  std::vector<std::byte>& read = reads_[static_cast<size_t>(ticket)];
  std::memcpy(host, read.data(), read.size());
  read.clear();
  if (std::all_of(reads_.begin(), reads_.end(), [](const auto& open) { return open.empty(); }))
    reads_.clear();
  return absl::OkStatus();
}

absl::Status CpuBackend::PrepareHashes(std::int64_t places) {
  hashes_.resize(static_cast<size_t>(places));
  return absl::OkStatus();
}

absl::Status CpuBackend::Hash(std::span<const std::byte> bytes, std::int32_t, std::int64_t place) {
  hashes_[static_cast<size_t>(place)] =
      HashOf({reinterpret_cast<const char*>(bytes.data()), bytes.size()}).low;
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CpuBackend::ReadHashes(std::int64_t count) {
  return Read(reinterpret_cast<const std::byte*>(hashes_.data()),
              count * static_cast<std::int64_t>(sizeof(std::uint64_t)));
}

absl::Status CpuBackend::NoteTime(Stamp stamp) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  times_ns_[static_cast<size_t>(stamp)] = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> CpuBackend::ReadTimes() {
  return Read(reinterpret_cast<const std::byte*>(times_ns_.data()), sizeof(times_ns_));
}

absl::StatusOr<bool> CpuBackend::AllFinite(const TensorView& view) {
  const auto finite = [&](const auto* data) {
    return std::all_of(data, data + view.shape.elements(), [](auto x) { return std::isfinite(x); });
  };
  if (view.dtype == DType::kF32) return finite(view.as<float>());
  if (view.dtype == DType::kF64) return finite(view.as<double>());
  return true;
}

absl::StatusOr<std::int64_t> CpuBackend::Mark(std::int32_t) {
  marks_.push_back(std::chrono::steady_clock::now());
  return static_cast<std::int64_t>(marks_.size() - 1);
}

absl::StatusOr<double> CpuBackend::ElapsedMs(std::int64_t from, std::int64_t to) {
  return std::chrono::duration<double, std::milli>(marks_[static_cast<size_t>(to)] -
                                                   marks_[static_cast<size_t>(from)])
      .count();
}

}  // namespace engine::backend::cpu

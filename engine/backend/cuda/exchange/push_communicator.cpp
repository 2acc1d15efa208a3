#include "engine/backend/cuda/exchange/push_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <sstream>
#include <utility>

#include "engine/base/print.h"

namespace engine::backend::cuda {
namespace {

class PushLaunch final : public Launch {
 public:
  PushLaunch(PushExchange exchange, const PushGroup* group, const NcclFallback* nccl)
      : exchange_(std::move(exchange)),
        group_(*group),
        nccl_(*nccl),
        name_(nccl->args.instruction->name),
        unsummed_(nccl->args.instruction->LeavesAddition()) {}

  absl::Status Run(const KernelContext& context) override {
    if (!group_.pushes) return RunNccl(context);
    const absl::Status status = exchange_.enqueue(exchange_);
    return status.ok() ? status : WithContext(status, name_);
  }

  absl::Status Finish() override {
    if (!group_.pushes) return absl::OkStatus();
    const absl::Status status = FinishPush(exchange_);
    return status.ok() ? status : WithContext(status, name_);
  }

  const std::byte* OtherPart() const override {
    return group_.pushes ? cuda::OtherPart(exchange_) : exchange_.scratch;
  }
  absl::Status Release() override {
    if (!group_.pushes) return absl::OkStatus();
    const absl::Status status = ReleasePart(exchange_);
    return status.ok() ? status : WithContext(status, name_);
  }

 private:
  // The sum is whole then: to what the other rank's part would have been its reader adds nothing.
  absl::Status RunNccl(const KernelContext& context) {
    RETURN_IF_ERROR(nccl_.launch->Run(context));
    if (!unsummed_) return absl::OkStatus();
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync(
        exchange_.scratch, 0, static_cast<std::size_t>(exchange_.layout.bytes), exchange_.place.stream));
    return absl::OkStatus();
  }

  const PushExchange exchange_;
  const PushGroup& group_;
  const NcclFallback& nccl_;
  const std::string name_;
  const bool unsummed_;
};

// What NCCL does on a stream that notes it.
class NotedLaunch final : public LaunchAround {
 public:
  using Note = std::function<absl::Status(const StreamNote&)>;
  NotedLaunch(std::unique_ptr<Launch> inner, Note note, const ExchangeNotes& notes)
      : LaunchAround(std::move(inner)), note_(std::move(note)), notes_(notes) {}

  absl::Status Run(const KernelContext& context) override {
    RETURN_IF_ERROR(note_(notes_.begun));
    RETURN_IF_ERROR(LaunchAround::Run(context));
    return note_(notes_.ended);
  }

 private:
  const Note note_;
  const ExchangeNotes notes_;
};

// What a rank tells the others about its memory.
struct SharedMemory {
  std::array<char, 40> host = {};  // of this start of the machine
  std::int64_t arena_bytes = 0;
  cudaIpcMemHandle_t arena = {}, flags = {};
};

std::array<char, 40> HostId() {
  std::array<char, 40> id = {};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(id.data(), id.size() - 1);
  return id;
}

// The peer's stream for what this rank sends or receives on `stream`.
std::int32_t OtherEnd(std::int32_t stream) {
  switch (stream) {
    case plan::kSendNext:
      return plan::kReceivePrevious;
    case plan::kReceivePrevious:
      return plan::kSendNext;
    case plan::kSendPrevious:
      return plan::kReceiveNext;
    default:
      return plan::kSendPrevious;
  }
}

std::string MemoryKey(std::int64_t rank) { return fmt::format("push/memory/{}", rank); }
std::string FailuresKey(std::int64_t rank) { return fmt::format("push/failures/{}", rank); }

}  // namespace

PushCommunicator::~PushCommunicator() {
  release_->Close();
  for (const auto& [rank, peer] : peers_) {
    if (peer.arena != nullptr) cudaIpcCloseMemHandle(peer.arena);
    if (peer.flags != nullptr) cudaIpcCloseMemHandle(peer.flags);
  }
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  if (local_ != nullptr) cudaStreamDestroy(local_);
  cudaFree(flags_);
}

absl::Status PushRelease::Open(CudaBackend* backend, std::byte* flags, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking));
  ones_.assign(bytes / sizeof(std::uint32_t), 1);
  flags_ = flags;
  backend_ = backend;
  return absl::OkStatus();
}

void PushRelease::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  backend_ = nullptr;
  if (beside_ != nullptr) cudaStreamDestroy(std::exchange(beside_, nullptr));
}

bool PushRelease::LetGo() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (backend_ == nullptr || !backend_->Enter().ok()) return false;
  backend_->Spoil();
  // Each time lets one wait of each stream go, and two iterations may have thousands.
  constexpr int kTimes = 64;
  cudaError_t state = cudaSuccess;
  for (int i = 0; i < kTimes && state == cudaSuccess; ++i) {
    state = cudaMemcpyAsync(flags_, ones_.data(), ones_.size() * sizeof(std::uint32_t),
                            cudaMemcpyHostToDevice, beside_);
  }
  return state == cudaSuccess && cudaStreamSynchronize(beside_) == cudaSuccess;
}

// Until the GPU is done with all that was launched.
bool PushCommunicator::LetAllGo() {
  std::vector<cudaStream_t> streams = {backend_.device().copy()};
  if (backend_.snapshot_stream() != nullptr) streams.push_back(backend_.snapshot_stream());
  for (std::int32_t stream = 0; stream < plan::kStreams; ++stream)
    streams.push_back(backend_.device().stream(stream));
  if (local_ != nullptr) streams.push_back(local_);
  while (release_->LetGo()) {
    cudaError_t state = cudaSuccess;
    for (const cudaStream_t stream : streams) {
      if (state == cudaSuccess) state = cudaStreamQuery(stream);
    }
    if (state != cudaErrorNotReady) return state == cudaSuccess;
  }
  return false;
}

// A call of the driver may stand still until the streams go on, so that a thread of its own makes them.
bool PushCommunicator::Quieten(std::chrono::milliseconds within) {
  // Until all ranks have heard of the end: what is pushed from now on makes no sense to those that would still count it.
  constexpr auto kHeard = std::chrono::milliseconds(100);
  std::this_thread::sleep_for(kHeard);
  nccl_.BeginAbort();
  std::promise<bool> promise;
  std::future<bool> is_quiet = promise.get_future();
  std::thread([this, promise = std::move(promise)]() mutable { promise.set_value(LetAllGo()); }).detach();
  return is_quiet.wait_for(within) == std::future_status::ready && is_quiet.get();
}

absl::StatusOr<std::unique_ptr<Launch>> PushCommunicator::Prepare(CollectiveArgs args) {
  const plan::Instruction& instruction = *args.instruction;
  if (instruction.collective() == plan::Collective::kSlice) return nccl_.Prepare(std::move(args));  // a copy
  ASSIGN_OR_RETURN(const ExchangeNotes notes,
                   progress_.Add(instruction.stream, fmt::format("{}, with ranks {}", instruction.name,
                                                                 fmt::join(args.group, ", "))));
  if (!Pushes(instruction, args.input.dtype)) {
    if (instruction.detached()) behind_by_nccl_[args.group].insert(instruction.stream);
    return PrepareNccl(std::move(args), notes);
  }
  PushPlace place{.rank = rank_,
                  .arena = backend_.arena(),
                  .stream_index = instruction.stream,
                  .stream = backend_.device().stream(instruction.stream),
                  .compute = backend_.device().compute(),
                  .local = nullptr,
                  .fork = nullptr,
                  .copied = nullptr,
                  .operations = &stream_flags_,
                  .flags = &flags_,
                  .peers = {},
                  .notes = notes,
                  .ready = options_.ready,
                  .release = options_.release};
  // From the next member on, so that not all push to the same one.
  for (size_t i = 1; i < args.group.size(); ++i) {
    const std::int64_t rank = args.group[(static_cast<size_t>(args.index) + i) % args.group.size()];
    PushPeer& peer = peers_[rank];
    peer.rank = rank;
    peer.alike = true;
    place.peers.push_back(&peer);
  }
  RETURN_IF_ERROR(MakeLocal());
  place.local = local_;
  place.fork = fork_;
  ASSIGN_OR_RETURN(place.copied, MakeEvent());
  ASSIGN_OR_RETURN(PushExchange exchange, PlanPush(args, std::move(place)));
  PushGroup* const group = GroupOf(args.group);
  (instruction.detached() ? group->detached : group->awaited).insert(instruction.stream);
  group->conversions.push_back(std::make_unique<NcclFallback>(NcclFallback{std::move(args), notes, nullptr}));
  return std::make_unique<PushLaunch>(std::move(exchange), group, group->conversions.back().get());
}

absl::StatusOr<std::unique_ptr<Launch>> PushCommunicator::PrepareNccl(CollectiveArgs args,
                                                                      const ExchangeNotes& notes) {
  const std::int32_t stream = args.instruction->stream;
  ASSIGN_OR_RETURN(std::unique_ptr<Launch> launch, nccl_.Prepare(std::move(args)));
  return std::make_unique<NotedLaunch>(
      std::move(launch), [this, stream](const StreamNote& note) { return Note(note, stream); }, notes);
}

absl::Status PushCommunicator::Note(const StreamNote& note, std::int32_t stream) const {
  if (!signals_) return absl::OkStatus();
  return stream_flags_.Enqueue({}, {}, backend_.device().stream(stream), note);
}

PushGroup* PushCommunicator::GroupOf(const std::vector<std::int64_t>& ranks) {
  std::unique_ptr<PushGroup>& group = groups_[ranks];
  if (group == nullptr) group = std::make_unique<PushGroup>();
  return group.get();
}

absl::Status PushCommunicator::PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) {
  RETURN_IF_ERROR(progress_.AddTransfers(stream, peer));
  if (!push) return nccl_.PrepareTransfer(peer, stream, push);
  peers_[peer].rank = peer;
  PushGroup* const group = GroupOf({std::min(rank_, peer), std::max(rank_, peer)});
  group->transfers.emplace(peer, stream);
  transfers_[peer] = group;
  return absl::OkStatus();
}

const PushPeer* PushCommunicator::PushedPeer(std::int64_t rank) const {
  const auto transfers = transfers_.find(rank);
  return transfers != transfers_.end() && transfers->second->pushes ? &peers_.at(rank) : nullptr;
}

absl::StatusOr<std::int64_t> PushCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                    const std::byte* data, std::int64_t bytes,
                                                    std::int32_t stream, std::int64_t there) {
  const PushPeer* const to = PushedPeer(peer);
  const ExchangeNotes notes = progress_.Transfer(stream, channel);
  if (to == nullptr) {
    RETURN_IF_ERROR(Note(notes.begun, stream));
    RETURN_IF_ERROR(nccl_.Send(peer, channel, data, bytes, stream, there).status());
    RETURN_IF_ERROR(Note(notes.ended, stream));
    return 0;
  }
  if (there < 0 || there + bytes > to->arena_bytes) {
    return Internal("transfer {}: {} bytes at {} of the {} of rank {}", channel, bytes, there,
                    to->arena_bytes, peer);
  }
  const cudaStream_t on = backend_.device().stream(stream);
  RETURN_IF_ERROR(
      stream_flags_.Enqueue({}, {flags_ + OffsetOfFlag(peer, stream, Flag::kReady)}, on, notes.begun));
  RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(to->arena + there, data, static_cast<std::size_t>(bytes), cudaMemcpyDefault, on));
  const std::int64_t done = OffsetOfFlag(rank_, OtherEnd(stream), Flag::kDone);
  RETURN_IF_ERROR(stream_flags_.Enqueue({to->flags + done}, {}, on, {}, notes.ended));
  return 0;
}

absl::Status PushCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                       std::int64_t bytes, std::int32_t stream) {
  const PushPeer* const from = PushedPeer(peer);
  const ExchangeNotes notes = progress_.Transfer(stream, channel);
  if (from == nullptr) {
    RETURN_IF_ERROR(Note(notes.begun, stream));
    RETURN_IF_ERROR(nccl_.Receive(peer, channel, data, bytes, stream));
    return Note(notes.ended, stream);
  }
  const std::int64_t ready = OffsetOfFlag(rank_, OtherEnd(stream), Flag::kReady);
  return stream_flags_.Enqueue({from->flags + ready}, {flags_ + OffsetOfFlag(peer, stream, Flag::kDone)},
                               backend_.device().stream(stream), notes.begun, notes.ended);
}

absl::Status PushCommunicator::MakeLocal() {
  if (local_ != nullptr) return absl::OkStatus();
  int lowest = 0;
  int highest = 0;
  RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&local_, cudaStreamNonBlocking, highest));
  ASSIGN_OR_RETURN(fork_, MakeEvent());
  return absl::OkStatus();
}

absl::StatusOr<cudaEvent_t> PushCommunicator::MakeEvent() {
  cudaEvent_t event = nullptr;
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  events_.push_back(event);
  return event;
}

// All that peers can reach at this rank's flags is there before they learn of it.
absl::Status PushCommunicator::MakeFlags() {
  constexpr std::int64_t kWhole = std::int64_t{2} << 20;  // so that nothing else is shared with it
  const std::int64_t last = peers_.empty() ? rank_ : std::max(rank_, peers_.rbegin()->first);
  const std::int64_t used = OffsetOfFlag(last + 1, 0, Flag::kReady);
  const auto bytes = static_cast<std::size_t>((used + kWhole - 1) / kWhole * kWhole);
  RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&flags_), bytes));
  RETURN_IF_CUDA_ERROR(cudaMemset(flags_, 0, bytes));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
  RETURN_IF_ERROR(release_->Open(&backend_, flags_, static_cast<std::size_t>(used)));
  // Some virtual GPUs have no such operations.
  signals_ = stream_flags_.Load().ok() &&
             stream_flags_.Enqueue({flags_}, {flags_}, backend_.device().compute()).ok() &&
             cudaStreamSynchronize(backend_.device().compute()) == cudaSuccess;
  return absl::OkStatus();
}

// Empty where this rank cannot share its memory: no other will reach it.
std::string PushCommunicator::Shared() const {
  SharedMemory shared{.host = HostId(), .arena_bytes = static_cast<std::int64_t>(backend_.arena().size())};
  if (!signals_) return "";
  if (cudaIpcGetMemHandle(&shared.arena, backend_.arena().data()) != cudaSuccess ||
      cudaIpcGetMemHandle(&shared.flags, flags_) != cudaSuccess) {
    cudaGetLastError();
    return "";
  }
  std::string bytes(sizeof(shared), '\0');
  std::memcpy(bytes.data(), &shared, sizeof(shared));
  return bytes;
}

absl::Status PushCommunicator::Open(PushPeer* peer) {
  ASSIGN_OR_RETURN(const std::string bytes, store_.Get(MemoryKey(peer->rank)));
  SharedMemory shared;
  if (bytes.size() != sizeof(shared)) {
    peer->unreachable = "it cannot share its memory";
    return absl::OkStatus();
  }
  std::memcpy(&shared, bytes.data(), sizeof(shared));
  if (shared.host != HostId()) {
    peer->unreachable = "it is on another host";
    return absl::OkStatus();
  }
  peer->arena_bytes = shared.arena_bytes;
  if (peer->alike && shared.arena_bytes != static_cast<std::int64_t>(backend_.arena().size())) {
    return Internal("rank {} has an arena of {} bytes, this rank one of {}", peer->rank, shared.arena_bytes,
                    backend_.arena().size());
  }
  const auto map = [](std::byte** memory, cudaIpcMemHandle_t handle) {
    return cudaIpcOpenMemHandle(reinterpret_cast<void**>(memory), handle, cudaIpcMemLazyEnablePeerAccess);
  };
  // Read once, so that peer access is there before anything is recorded.
  const auto read = [](const std::byte* memory) {
    std::uint32_t word = 0;
    return cudaMemcpy(&word, memory, sizeof(word), cudaMemcpyDefault);
  };
  cudaError_t error = map(&peer->arena, shared.arena);
  if (error == cudaSuccess) error = map(&peer->flags, shared.flags);
  if (error == cudaSuccess) error = read(peer->arena);
  if (error == cudaSuccess) error = read(peer->flags);
  if (error != cudaSuccess) {
    cudaGetLastError();
    peer->unreachable = cudaGetErrorString(error);
  }
  return absl::OkStatus();
}

// Every member reads the same of every other, so all come to the same answer.
absl::Status PushCommunicator::Agree(const std::vector<std::int64_t>& ranks, PushGroup* group) {
  group->pushes = true;
  for (const std::int64_t member : ranks) {
    ASSIGN_OR_RETURN(const std::string failures, store_.Get(FailuresKey(member)));
    std::istringstream lines(failures);
    std::int64_t peer = 0;
    std::string why;
    while (lines >> peer && std::getline(lines, why)) {
      if (!group->pushes || std::find(ranks.begin(), ranks.end(), peer) == ranks.end()) continue;
      group->pushes = false;
      if (rank_ != ranks.front()) continue;
      Print(stderr,
            "note: ranks {} exchange by NCCL, not by copy engines: rank {} does not reach the memory of "
            "rank {}:{}\n",
            fmt::join(ranks, ", "), member, peer, why);
    }
  }
  return absl::OkStatus();
}

absl::Status PushCommunicator::UseNccl(const PushGroup& group) {
  for (const std::unique_ptr<NcclFallback>& conversion : group.conversions) {
    ASSIGN_OR_RETURN(conversion->launch, PrepareNccl(std::move(conversion->args), conversion->notes));
  }
  for (const auto& [peer, stream] : group.transfers) {
    RETURN_IF_ERROR(nccl_.PrepareTransfer(peer, stream, false));
  }
  return absl::OkStatus();
}

absl::Status PushCommunicator::Connect() {
  RETURN_IF_ERROR(MakeFlags());
  if (!groups_.empty()) RETURN_IF_ERROR(ReachPeers());
  RETURN_IF_ERROR(OneStreamOfNccl());
  for (const auto& [ranks, group] : groups_) {
    if (!group->pushes) RETURN_IF_ERROR(UseNccl(*group));
    for (const std::unique_ptr<NcclFallback>& conversion : group->conversions) conversion->args = {};
  }
  return nccl_.Connect();
}

absl::Status PushCommunicator::ReachPeers() {
  RETURN_IF_ERROR(store_.Set(MemoryKey(rank_), Shared()));
  std::string failures;
  for (auto& [rank, peer] : peers_) {
    RETURN_IF_ERROR(Open(&peer));
    if (!peer.unreachable.empty()) failures += fmt::format("{} {}\n", rank, peer.unreachable);
  }
  RETURN_IF_ERROR(store_.Set(FailuresKey(rank_), failures));
  for (const auto& [ranks, group] : groups_) RETURN_IF_ERROR(Agree(ranks, group.get()));
  return absl::OkStatus();
}

// Two communicators of NCCL at work at once could wait for each other. The plan keeps them apart, but not
// where NCCL has to take over pushes.
absl::Status PushCommunicator::OneStreamOfNccl() const {
  const auto refuse = [](const std::vector<std::int64_t>& behind, const std::vector<std::int64_t>& beside) {
    return FailedPrecondition(
        "ranks {} exchange beside what ranks {} do, which goes with copy engines alone, but some of them "
        "cannot reach each other's memory: parallelism.exchange = \"nccl\" makes a plan without",
        fmt::join(behind, ", "), fmt::join(beside, ", "));
  };
  const auto differ = [](const std::set<std::int32_t>& awaited, const std::set<std::int32_t>& detached) {
    return !awaited.empty() && !detached.empty() && (awaited.size() > 1 || awaited != detached);
  };
  for (const auto& [ranks, group] : groups_) {
    for (const auto& [others, other] : groups_) {
      const bool both = ranks != others && differ(group->awaited, other->detached);
      if (!both || (group->pushes && other->pushes)) continue;
      return refuse(others, ranks);
    }
    for (const auto& [others, streams] : behind_by_nccl_) {
      if (!group->pushes && ranks != others && differ(group->awaited, streams)) return refuse(others, ranks);
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::backend::cuda

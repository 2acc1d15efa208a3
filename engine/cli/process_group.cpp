#include "engine/cli/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/process_communicator.h"
#include "engine/base/hash.h"
#include "engine/base/print.h"
#include "engine/base/version.h"
#include "engine/cli/device.h"
#include "engine/cli/watched_communicator.h"

namespace engine::cli {
namespace {

// Of a rank whose run has ended, and which a call of a GPU's driver may hold: so it says why, before its
// supervisor ends it (supervisor.cpp: 5 s), and after rank 0 has told the others (RendezvousOptions::linger).
constexpr auto kEndTimeout = std::chrono::seconds(4);
// Before that, how long it may take by itself, and how often what it waits for is let go then.
constexpr auto kOwnEndTimeout = std::chrono::milliseconds(200);
constexpr auto kReleasePause = std::chrono::milliseconds(2);

// The version and a hash of the program itself: ranks of different builds may compute different bits.
std::string BuildId() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  Hasher hasher;
  std::array<char, 1 << 16> buffer;
  while (program.read(buffer.data(), buffer.size()) || program.gcount() > 0) {
    hasher.Update(buffer.data(), static_cast<std::size_t>(program.gcount()));
  }
  return fmt::format("{} ({})", Version(), hasher.HexDigest());
}

// Of a host whose own name is a loopback address for it, as Debian's /etc/hosts has it: the other hosts would
// wait in vain.
absl::Status CheckReachable(const launch::Placement& placement, const launch::Descriptor& listener) {
  const std::string address = launch::LocalAddress(listener);
  if (!placement.guessed_host || !launch::IsLoopback(address)) return absl::OkStatus();
  return Unavailable(
      "{}: {}, where rank 0 is, is {} for itself (see its /etc/hosts), and the ranks of other hosts cannot "
      "come there: give ENGINE_COORDINATOR=HOST:PORT, an address that all can reach",
      placement.source, placement.coordinator.host, address);
}

}  // namespace

void TellWhereEveryoneCanCome(const launch::Descriptor& listener, const std::string& option) {
  const std::string address = launch::LocalAddress(listener);
  if (address != "0.0.0.0" && address != "::") return;
  Print(stderr,
        "note: {} {}: rank 0 listens on every network of this machine. A name or an address of it, as in "
        "node0:{}, listens on that network alone, and is what the other hosts need\n",
        option, launch::Endpoint{address, launch::PortOf(listener)}.ToString(), launch::PortOf(listener));
}

ProcessGroup::ProcessGroup(const launch::Placement& placement, const launch::RendezvousOptions& options)
    : placement_(placement), options_(options) {
  options_.parent = placement.parent;
  const std::string process = launch::ProcessName();
  static const std::string build = BuildId();  // the program is read once
  self_ = {.rank = placement.rank,
           .world = placement.world,
           .build = build,
           .plan_hash = "",
           .device = process,
           .process = process};
}

ProcessGroup::~ProcessGroup() {
  xids_.reset();  // it speaks to the client
  std::unique_ptr<backend::cpu::ProcessWorld> world;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    world = std::move(world_);
  }
  world.reset();
  client_.reset();
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Open(const launch::Placement& placement,
                                                                 const launch::RendezvousOptions& options) {
  std::unique_ptr<ProcessGroup> group(new ProcessGroup(placement, options));
  if (placement.rank != 0) return group;
  if (placement.listener >= 0) {
    group->listener_ = launch::Descriptor(placement.listener);
  } else {
    absl::StatusOr<launch::Descriptor> listener = launch::Listen(placement.coordinator);
    if (!listener.ok()) {
      return WithContext(listener.status(),
                         fmt::format("rank 0's address, by {} or ENGINE_COORDINATOR", placement.source));
    }
    RETURN_IF_ERROR(CheckReachable(placement, *listener));
    TellWhereEveryoneCanCome(*listener, "the coordinator");
    group->listener_ = *std::move(listener);
  }
  return group;
}

absl::StatusOr<launch::Client*> ProcessGroup::Join(const std::string& plan_hash) {
  joined_ = true;
  self_.plan_hash = plan_hash;
  if (listener_.open())
    server_ = launch::Server::Start(std::move(listener_), placement_.token, self_, options_);
  ASSIGN_OR_RETURN(client_, launch::Client::Join(placement_.coordinator, placement_.token, self_, options_,
                                                 [this](const absl::Status& why) { OnAbort(why); }));
  if (gpu_ != nullptr)
    xids_ = std::make_unique<health::XidWatch>(gpu_, [this](const health::Xid& xid) { OnXid(xid); });
  if (connect_) RETURN_IF_ERROR(connect_());
  return client_.get();
}

// A call into the driver may never return after an error of the GPU: all ranks end for it now.
void ProcessGroup::OnXid(const health::Xid& xid) {
  Print(stderr, "warning: {}: {}\n", self_.device, xid.Text());
  if (xid.is_fatal) client_->Fail(Internal("{}: {}", self_.device, xid.Text())).IgnoreError();
}

absl::Status ProcessGroup::ConnectCpu() {
  ASSIGN_OR_RETURN(std::unique_ptr<backend::cpu::ProcessWorld> world,
                   backend::cpu::ProcessWorld::Connect({.rank = placement_.rank,
                                                        .ranks = placement_.world,
                                                        .address = client_->address(),
                                                        .connect_timeout = options_.join_timeout},
                                                       client_.get()));
  const std::lock_guard<std::mutex> lock(mutex_);
  world_ = std::move(world);
  if (!client_->status().ok()) world_->Abort(client_->status());
  return absl::OkStatus();
}

// Waits for other ranks end with the reason; a rank that hears of nothing any more ends all the same.
void ProcessGroup::OnAbort(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::thread([reason = Message(why), fate = fate_, release = release_] {
    const auto end = std::chrono::steady_clock::now() + kEndTimeout;
    std::this_thread::sleep_for(kOwnEndTimeout);
    while (*fate == Fate::kEndsWithRun && std::chrono::steady_clock::now() < end) {
      if (release) release();
      std::this_thread::sleep_for(kReleasePause);
    }
    Fate expected = Fate::kEndsWithRun;
    if (!fate->compare_exchange_strong(expected, Fate::kIsEnded)) return;
    Print(stderr, "engine run: {}\nengine run: this rank is ended, as its run has ended and it has not\n",
          reason);
    _exit(kPeerLost);
  }).detach();
  if (world_ != nullptr) world_->Abort(why);
}

bool ProcessGroup::Survive() {
  Fate expected = Fate::kEndsWithRun;
  return is_quiet_ && fate_->compare_exchange_strong(expected, Fate::kSurvives);
}

void ProcessGroup::ReleaseBy(std::function<void()> release) {
  const std::lock_guard<std::mutex> lock(mutex_);
  release_ = std::move(release);
}

absl::Status ProcessGroup::Fail(const absl::Status& error) {
  if (client_ != nullptr) return client_->Fail(error);
  if (joined_) return error;
  const std::string what = "failed: " + Message(error);
  if (!listener_.open()) {
    launch::Client::ReportFailure(placement_.coordinator, placement_.token, self_, options_, what);
    return error;
  }
  launch::RendezvousOptions options = options_;
  // Our supervisor would end it, and takes its place.
  if (placement_.source != launch::kOwnSource)
    options.linger = std::min(launch::kStartSkew, options.join_timeout);
  server_ = launch::Server::Start(std::move(listener_), placement_.token, self_, options,
                                  self_.Name() + " " + what);
  return error;
}

state::Device ProcessGroup::CpuDevice(int threads) {
  state::Device device;
  device.profile = backend::cpu::CpuBackend::CpuProfile();
  device.make_backend = [threads](std::int64_t, std::int64_t) {
    return std::make_unique<backend::cpu::CpuBackend>(threads);
  };
  SetMemory(&device, static_cast<int>(placement_.local_size));
  connect_ = [this] { return ConnectCpu(); };
  return Attach(std::move(device), self_.process, [this](launch::Client*) {
    return std::make_unique<backend::cpu::ProcessCommunicator>(world_.get());
  });
}

state::Device ProcessGroup::Attach(state::Device device, const std::string& id,
                                   MakeCommunicator communicator) {
  self_.device = id;
  device.make_communicator =
      [this, communicator = std::move(communicator)](std::int64_t) -> std::unique_ptr<backend::Communicator> {
    return std::make_unique<WatchedCommunicator>(communicator(client_.get()), client_.get());
  };
  device.abort = [this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (world_ != nullptr) world_->Abort(absl::AbortedError("this rank has failed"));
  };
  device.rank = placement_.rank;
  device.join = [this](const std::string& plan_hash) { return Join(plan_hash); };
  return device;
}

}  // namespace engine::cli

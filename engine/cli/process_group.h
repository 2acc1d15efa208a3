// This process as one rank of a run whose ranks are processes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/backend/backend.h"
#include "engine/backend/cpu/process_world.h"
#include "engine/health/xid_watch.h"
#include "engine/launch/environment.h"
#include "engine/launch/rendezvous.h"
#include "engine/state/ranks.h"

namespace engine::cli {

// Says, on standard error, where rank 0 listens on every network of its host: `option` gave that address.
void TellWhereEveryoneCanCome(const launch::Descriptor& listener, const std::string& option);

class ProcessGroup {
 public:
  // Rank 0 listens from here on; error: it cannot.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Open(const launch::Placement& placement,
                                                            const launch::RendezvousOptions& options);
  ~ProcessGroup();

  // Of a CPU rank that has `threads` threads. The group must outlive it.
  state::Device CpuDevice(int threads);
  // `device` as this rank's; `id` names its hardware, and is no other rank's. `communicator` is called
  // when all ranks have met.
  using MakeCommunicator = std::function<std::unique_ptr<backend::Communicator>(launch::Client* client)>;
  state::Device Attach(state::Device device, const std::string& id, MakeCommunicator communicator);

  // This rank runs on that GPU: once the ranks have met, its errors are told as they come, and one that is the GPU's own ends the run.
  void WatchGpu(std::shared_ptr<health::Gpu> gpu) { gpu_ = std::move(gpu); }

  const launch::Placement& placement() const { return placement_; }

  // The run of this rank has ended with an error: all others end too, also those that are yet to come, within
  // launch::kStartSkew. Returns the reason of the whole run's end.
  absl::Status Fail(const absl::Status& error);
  // Whether this rank has met the others, or tried to: the run's end may then be another's doing.
  bool joined() const { return joined_; }
  // `release` makes this rank's device go on where it waits for other ranks. Once the run has ended it is called again and again, from
  // another thread, until this process ends or survives.
  void ReleaseBy(std::function<void()> release);
  // Whether nothing of the run is under way on this rank's device.
  void SetQuiet(bool is_quiet) { is_quiet_ = is_quiet; }
  bool is_quiet() const { return is_quiet_; }
  // From now on this process is not ended for the end of this run, which may have come already: it takes part in another attempt. False: it is
  // being ended, or something is under way on its device.
  bool Survive();

 private:
  ProcessGroup(const launch::Placement& placement, const launch::RendezvousOptions& options);
  absl::StatusOr<launch::Client*> Join(const std::string& plan_hash);
  absl::Status ConnectCpu();
  void OnAbort(const absl::Status& why);
  void OnXid(const health::Xid& xid);

  const launch::Placement placement_;
  launch::RendezvousOptions options_;
  launch::Member self_;
  launch::Descriptor listener_;  // of rank 0, until its server has it
  std::unique_ptr<launch::Server> server_;
  std::unique_ptr<launch::Client> client_;
  std::shared_ptr<health::Gpu> gpu_;        // null: nothing is known of it
  std::unique_ptr<health::XidWatch> xids_;  // from when the ranks have met
  bool joined_ = false;                     // or tried to
  bool is_quiet_ = true;
  std::function<absl::Status()> connect_;  // to the other ranks, when all are here
  enum class Fate { kEndsWithRun, kSurvives, kIsEnded };
  std::shared_ptr<std::atomic<Fate>> fate_ = std::make_shared<std::atomic<Fate>>(Fate::kEndsWithRun);
  std::mutex mutex_;               // guards what follows
  std::function<void()> release_;  // null: nothing waits where no thread can be reached
  std::unique_ptr<backend::cpu::ProcessWorld> world_;
};

}  // namespace engine::cli

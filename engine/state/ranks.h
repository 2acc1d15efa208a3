// The ranks that this process runs, each a RankExecutor: all of the run on threads of their own while there
// is work, or the one that this process is.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/launch/rendezvous.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::state {

// What a device says of itself (health/nvml.h).
struct DeviceHealth {
  double clock_mhz = 0;  // of its multiprocessors
  double temperature_c = 0;
  std::string text;  // what explains a slow one, in words: clock, temperature, power
};

// Makes the concrete backend; filled in by cli, the only folder that names one.
struct Device {
  plan::DeviceProfile profile;
  // World of ranks: resources shared by the communicators below.
  std::function<std::unique_ptr<backend::Backend>(std::int64_t rank, std::int64_t world)> make_backend;
  std::function<std::unique_ptr<backend::Communicator>(std::int64_t rank)> make_communicator;
  // Where ranks of one process have devices of their own: makes the calling thread one of the rank's. Called at the beginning of each
  // thread of a rank. Null: there is nothing to do.
  std::function<absl::Status(std::int64_t rank)> enter = {};
  // Makes every rank that waits for another return with an error, for good: the device serves no further run.
  std::function<void()> abort;
  // Where ranks are processes, on a device whose work outlives the calls that begin it: once the run has failed, ends what the device still
  // waits for of other ranks. Whether nothing runs there any more, so that the executor may be taken down. Null: that is not known.
  std::function<bool()> quieten = {};
  // Memory that the arenas of all ranks of this process share; 0: not known.
  std::int64_t memory_bytes = 0;
  std::string memory_source = "this machine has";  // whose number that is, before "8 GiB of memory"
  // Memory in use on this process's device, by all that run there; null, or nullopt: not known.
  std::function<std::optional<std::int64_t>()> used_bytes = {};
  // Of this process's device. Null, or nullopt: nothing is known.
  std::function<std::optional<DeviceHealth>()> health = {};
  // More ranks compute on a host's cores than it has, so that how long a rank takes says nothing of it.
  bool shares_cores = false;
  // ExecutorOptions::host_threads of a rank; 0: an equal share of the process's cores among the ranks that it has.
  int host_threads = 0;
  // Where ranks are processes: the rank that this one is, and what meets the others, whose plan must be the
  // same. Called once, before the calls above.
  std::optional<std::int64_t> rank;
  std::function<absl::StatusOr<launch::Client*>(const std::string& plan_hash)> join;
};

// The device must outlive it.
class Ranks {
 public:
  static absl::StatusOr<std::unique_ptr<Ranks>> Create(const plan::Plan& plan, const Device& device,
                                                       std::uint64_t seed,
                                                       const executor::ExecutorOptions& options = {});
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // body(rank) for every rank at once. The first error of its own, in order of rank, is returned after all
  // have stopped; ranks that only waited for the failed one are not reported.
  absl::Status Run(const std::function<absl::Status(executor::RankExecutor&)>& body);

  // Lets the executors be until the process ends: to take down what other processes are connected to could
  // wait for them, and for ever for one that is lost.
  void Leave();

  // In order of rank.
  const std::vector<std::unique_ptr<executor::RankExecutor>>& executors() const { return executors_; }

 private:
  explicit Ranks(const Device& device) : device_(device) {}
  absl::Status RunThreads(std::int64_t count, const std::function<absl::Status(std::int64_t)>& body) const;

  const Device& device_;
  std::vector<std::unique_ptr<executor::RankExecutor>> executors_;
};

}  // namespace engine::state

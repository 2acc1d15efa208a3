#include "engine/state/ranks.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "engine/base/core_limit.h"

namespace engine::state {

absl::Status Ranks::RunThreads(std::int64_t count,
                               const std::function<absl::Status(std::int64_t)>& body) const {
  if (count == 1) return body(0);
  std::vector<absl::Status> statuses(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  absl::Status started;
  for (std::int64_t rank = 0; rank < count && started.ok(); ++rank) {
    try {
      threads.emplace_back([&, rank] {
        absl::Status& status = statuses[static_cast<size_t>(rank)];
        if (device_.enter) status = device_.enter(rank);
        if (status.ok()) status = body(rank);
        if (!status.ok()) device_.abort();
      });
    } catch (const std::system_error& error) {
      started = ResourceExhausted("this machine starts no more than {} of {} ranks as threads: {}", rank,
                                  count, error.what());
      device_.abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
  RETURN_IF_ERROR(started);
  for (const bool only_own : {true, false}) {
    for (const absl::Status& status : statuses) {
      if (!status.ok() && !(only_own && absl::IsAborted(status))) return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Ranks>> Ranks::Create(const plan::Plan& plan, const Device& device,
                                                     std::uint64_t seed,
                                                     const executor::ExecutorOptions& options) {
  std::unique_ptr<Ranks> ranks(new Ranks(device));
  const std::int64_t world = plan.mesh.world();
  const std::int64_t first = device.rank.value_or(0);
  const std::int64_t count = device.rank ? 1 : world;
  executor::ExecutorOptions of_rank = options;
  of_rank.host_threads =
      device.host_threads > 0 ? device.host_threads : std::max(1, CoresOfProcess() / static_cast<int>(count));
  ranks->executors_.resize(static_cast<size_t>(count));
  RETURN_IF_ERROR(ranks->RunThreads(count, [&](std::int64_t i) -> absl::Status {
    const std::int64_t rank = first + i;
    ASSIGN_OR_RETURN(ranks->executors_[static_cast<size_t>(i)],
                     executor::RankExecutor::Create(plan, rank, device.make_backend(rank, world),
                                                    device.make_communicator(rank), seed, of_rank));
    return absl::OkStatus();
  }));
  return ranks;
}

absl::Status Ranks::Run(const std::function<absl::Status(executor::RankExecutor&)>& body) {
  return RunThreads(static_cast<std::int64_t>(executors_.size()),
                    [&](std::int64_t i) { return body(*executors_[static_cast<size_t>(i)]); });
}

// Devices of one process that are connected wait for each other when they are taken down, and one thread would take down one first.
Ranks::~Ranks() {
  if (device_.enter) Leave();
}

void Ranks::Leave() {
  for (std::unique_ptr<executor::RankExecutor>& executor : executors_) {
    if (executor == nullptr) continue;  // it could not be made
    executor->WaitForPrefetch();
    static_cast<void>(executor.release());
  }
}

}  // namespace engine::state

// SIGINT, SIGTERM and SIGHUP ask a run to stop: it finishes the iteration under way, and saves.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "engine/launch/rendezvous.h"

namespace engine::train {

struct StopOptions {
  // Who ends the run at once, unsaved, when it is asked again (launch/stop_requests.h): nobody, this process
  // with exit code 128 + the signal's number, or the supervisor that has started it. This process calls
  // StopSignals' `before_end` first; where that does not return, a third request ends the process without.
  enum class Again { kNobody, kThisProcess, kSupervisor };
  Again again = Again::kNobody;
  bool tells = true;  // says on standard error what is finished first
};

// For as long as this lives; one at a time in a process. A SIGHUP that is ignored, as nohup(1) has it, stays
// so.
class StopSignals {
 public:
  // `before_end` is called on a thread of its own, while the run's go on, and may do what no handler may. What it
  // refers to lives longer than this.
  explicit StopSignals(const StopOptions& options, std::function<void()> before_end = {});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const;
  // Asked again, where this does not end the process (StopOptions::again).
  bool insisted() const;
  // This iteration, from 1, is under way, and finished before the run stops.
  void Begin(std::int64_t iteration);
  // From now on the ranks of this run agree on the last iteration. `client` lives as long as this.
  void Attach(launch::Client* client);

 private:
  struct Before {
    int number = 0;
    struct sigaction action {};
  };
  std::vector<Before> before_;
  std::thread ender_;  // Again::kThisProcess: waits for a second request, and ends the process
};

}  // namespace engine::train

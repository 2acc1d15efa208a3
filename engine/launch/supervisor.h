// Starts the ranks of one host as processes of this program, and answers for them: none outlives it, and when
// one fails all end.
#pragma once

#include <absl/status/statusor.h>
#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/next_place.h"
#include "engine/launch/socket.h"

namespace engine::launch {

// SIGCHLD, SIGINT, SIGTERM and SIGHUP as something to read, for as long as this lives; one at a time in a
// process. A SIGHUP that is ignored, as nohup(1) has it, stays so. By handlers and not by signalfd, which
// sees nothing of what another thread takes that does not block them: a GPU's driver has such a thread.
class Signals {
 public:
  static absl::StatusOr<std::unique_ptr<Signals>> Make();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int number() const { return out_.number(); }
  int Next() const;  // the next one that has come; 0: none
  // fork(2). The child takes signals as this process did before; one that comes before exec is not lost.
  pid_t Fork() const;

 private:
  Signals() = default;
  Descriptor out_, in_;
  std::array<struct sigaction, 4> before_{};
};

// What ranks say by their exit codes, beside 0 and their own failures.
struct SupervisedCodes {
  int peer_lost = 0;  // ended because of another rank
  int stopped = 0;    // stopped by a signal before the end, and saved: no failure
};

struct SupervisedEnd {
  int code = 0;
  bool asked_to_stop = false;   // by a signal, whatever came of it
  bool is_of_survivor = false;  // it failed first, a process of an attempt before this one
  // Says why the ranks ended: what the one that failed first by itself did ("rank 1 (pid 42) ended with exit code 4"), or
  // kStoppedAtOnce where none failed and a second signal ended them.
  std::string verdict;
};

// A rank's process that has outlived an attempt, and waits for its place in another one (next_place.h).
struct Survivor {
  pid_t pid = 0;
  PlaceGiver places;
  Descriptor error;  // what it writes on standard error
};

// Those of this host. A process has what is its own, a GPU, by its number among the ranks of its host, and keeps that.
class Survivors {
 public:
  Survivors() = default;
  ~Survivors() { End(); }
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;

  void End();  // all of them
  void Add(std::int64_t local_rank, Survivor survivor);
  // nullopt: there is none, or it has died meanwhile.
  std::optional<Survivor> Take(std::int64_t local_rank);

 private:
  std::map<std::int64_t, Survivor> by_local_rank_;
};

struct SupervisorOptions {
  std::int64_t world = 1;
  std::int64_t first_rank = 0;  // of this host
  std::int64_t local_size = 1;
  Endpoint coordinator;
  std::string token;
  Descriptor listener;  // of rank 0, where it is one of this host's
  // Of each rank of this host, a file in memory that is handed to it (ENGINE_MEMORY), to stay when the rank ends; none: there are none.
  std::vector<int> memory_files = {};
  int copies_port =
      0;  // where this host keeps copies of other hosts' ranks (copy_server.h), for its ranks to tell; 0: it keeps none
  std::string copies_at = {};  // where hosts keep copies of states, the spares too, with commas between
  bool from_disk = false;      // the ranks take nothing from memory
  bool is_restart =
      false;  // the ranks of an attempt before this one may not all be gone: those of a host that is silent
  // Of attempts before this one; those of this one are added. Null: processes end with their attempt.
  Survivors* survivors = nullptr;
  bool all_output = false;  // show the standard output of every rank, not of rank 0 alone
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  // of each process, its name first
};

// Runs the processes to their end. Rank 0's output stays as it is; lines of other ranks begin with "rank 3:
// ", and a reason ("engine run: …") that several give is told once. SIGINT, SIGTERM and SIGHUP are passed on;
// one that insists (stop_requests.h) kills all ranks, and 128 + its number is returned. When a rank fails,
// the others have 5 s to end by themselves, then get SIGTERM, and SIGKILL 3 s later. The code is that of
// the rank that failed first by itself (128 + n where signal n ended it), `peer_lost` where all that failed
// ended because of a rank elsewhere (or wait, to take part in another attempt), `stopped` where none failed and one ended with that code, or 0; how the first one ended is told on standard error, after its own
// last words and before those of others, and to ranks on all hosts that wait for it to join. Error: a rank
// cannot be started. Call from the main thread: the processes die with it.
absl::StatusOr<SupervisedEnd> Supervise(SupervisorOptions options, SupervisedCodes codes);

// The arguments of this process.
std::vector<std::string> OwnArguments();

// 128 random bits, as hex digits.
absl::StatusOr<std::string> RandomToken();

}  // namespace engine::launch

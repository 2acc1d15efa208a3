// `engine run` as several processes: its options, and the start of the ranks of this host.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cli/device.h"
#include "engine/launch/environment.h"
#include "engine/launch/rendezvous.h"
#include "engine/recipe/load.h"

namespace engine::cli {

inline constexpr const char* kProcesses = "Processes";  // the group of these options in --help

struct LaunchOptions {
  bool processes = false;
  std::int64_t nodes = 1;
  bool nodes_given = false;
  std::int64_t spares = 0;  // further hosts, which wait until they stand in for one that is lost
  std::optional<std::int64_t> min_nodes =
      {};  // with which the run goes on, on fewer data-parallel ranks; none: it does not
  std::int64_t node_rank = 0;
  bool node_rank_given = false;
  std::string coordinator;
  std::string derived_token;  // where none is given, and what started the hosts says enough to make one
  bool awaits_name = false;   // of the coordinator: who starts hosts may make it known later than them
  std::optional<std::int64_t> ranks_per_node = {};  // that whoever started this host asks for
  std::string token_file;
  bool all_output = false;
  double join_timeout_s = 120;
  double last_call_timeout_s = 30;  // for hosts that are lost, before the run goes on without them
  double heartbeat_timeout_s = 4;
  std::optional<double> hang_timeout_s = std::nullopt;  // nullopt: learned
  std::int64_t max_restarts = 0;                        // of the ranks of this host
  int stopped_code = 0;           // the program's, where a signal stopped the run before its end
  std::optional<int> retry_code;  // where another try may go well; otherwise what happened has its own
};

void AddLaunchOptions(CLI::App* command, LaunchOptions* options);

// Takes what is not given from the variables of whoever started this host (launch::FindNode). Whether they say how many hosts there are;
// then this process is no rank. Errors: of a variable.
absl::StatusOr<bool> TakeNode(const launch::Lookup& lookup, LaunchOptions* options);

// What of these has no meaning for a run that starts no processes: of one process, or of those that a
// launcher has started. Error: the option, and what to do.
absl::Status CheckUnused(const LaunchOptions& options, const std::optional<launch::Placement>& placement);

// The secret of --token-file. Errors: no such file, nothing in it.
absl::StatusOr<std::string> ReadToken(const std::string& path);

// The program's exit code, which whoever started it chose, for a run that ended with `code`: one of device.h, or 128 + the signal that
// ended a rank.
int FinalCode(int code, const LaunchOptions& options);

launch::Milliseconds MillisecondsOf(double seconds);
launch::RendezvousOptions RendezvousOf(const LaunchOptions& options);

// Says what is wrong, on standard error; returns the code.
int Complain(const absl::Status& status, int exit_code);

// The ranks of the other hosts hear that those of this one will not come, and why: those that are started
// within launch::kStartSkew. `world`: ranks of the run, as far as it is known.
void TellOtherNodes(const LaunchOptions& options, std::int64_t world, const absl::Status& why);

// Starts the ranks of this host, of a run in the folder `out`, which must be a new one where it is to be `fresh`, and waits for their end; the exit code. `reload`: the recipe again, with
// these settings more.
using Reload = std::function<recipe::LoadResult(const std::vector<std::string>& sets)>;
int RunProcesses(const recipe::Recipe& recipe, const Reload& reload, const DeviceChoice& device,
                 const LaunchOptions& options, const std::string& out, bool fresh);

}  // namespace engine::cli

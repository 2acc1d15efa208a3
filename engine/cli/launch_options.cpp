#include "engine/cli/launch_options.h"
#include "engine/cli/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "engine/base/print.h"
#include "engine/cli/attempts.h"
#include "engine/cli/host_memory.h"
#include "engine/cli/process_group.h"
#include "engine/cli/restarts.h"
#include "engine/cli/smaller_layouts.h"
#include "engine/launch/supervisor.h"
#include "engine/train/outcome.h"
#include "engine/train/run.h"

namespace engine::cli {
namespace {

constexpr double kLeastTimeout = 0.05;  // seconds

// Error: the options contradict each other or the recipe.
absl::StatusOr<std::string> TokenOf(const LaunchOptions& options) {
  if (!options.token_file.empty()) return ReadToken(options.token_file);
  std::string token = launch::ProcessEnvironment()("ENGINE_TOKEN").value_or("");
  if (!token.empty()) {
    RETURN_IF_ERROR(launch::CheckToken("ENGINE_TOKEN", token));
    return token;
  }
  if (!options.derived_token.empty()) return options.derived_token;
  if (options.nodes > 1) {
    return absl::InvalidArgumentError(
        "--nodes: several nodes need a token, the same on all: --token-file FILE, or ENGINE_TOKEN in the "
        "environment");
  }
  return launch::RandomToken();
}

absl::Status CheckMinNodes(const LaunchOptions& options) {
  if (!options.min_nodes) return absl::OkStatus();
  if (*options.min_nodes > options.nodes)
    return InvalidArgument("--min-nodes {} is more than --nodes {}", *options.min_nodes, options.nodes);
  const std::int64_t hosts = options.nodes + options.spares;
  if (const std::int64_t least = hosts / 2 + 1; *options.min_nodes < least) {
    return InvalidArgument(
        "--min-nodes {} is not more than half of all {} hosts: the two halves of a network that is cut could "
        "then both go on; give at least {}",
        *options.min_nodes, hosts, least);
  }
  if (*options.min_nodes < options.nodes && options.max_restarts == 0)
    return InvalidArgument(
        "--min-nodes: a run goes on with fewer hosts where ranks are started again: --max-restarts N");
  return absl::OkStatus();
}

absl::Status CheckPlace(const LaunchOptions& options) {
  if (options.spares >= options.nodes && options.spares > 0) {
    return InvalidArgument(
        "--spares {} are not fewer than --nodes {}: the two halves of a network that is cut could then both "
        "go on",
        options.spares, options.nodes);
  }
  if (options.spares > 0 && options.max_restarts == 0)
    return InvalidArgument("--spares: a spare stands in where ranks are started again: --max-restarts N");
  RETURN_IF_ERROR(CheckMinNodes(options));
  if (options.node_rank < options.nodes + options.spares) return absl::OkStatus();
  if (options.spares == 0)
    return InvalidArgument("--node-rank {} is not below --nodes {}", options.node_rank, options.nodes);
  return InvalidArgument("--node-rank {} is not below the {} hosts of --nodes {} and --spares {}",
                         options.node_rank, options.nodes + options.spares, options.nodes, options.spares);
}

absl::Status CheckNodes(const recipe::Recipe& recipe, const LaunchOptions& options) {
  RETURN_IF_ERROR(CheckPlace(options));
  if (recipe.world_size() % options.nodes != 0) {
    return InvalidArgument("--nodes {} do not share the recipe's {} ranks evenly", options.nodes,
                           recipe.world_size());
  }
  if (const std::int64_t each = recipe.world_size() / options.nodes;
      options.ranks_per_node && *options.ranks_per_node != each) {
    return InvalidArgument(
        "PET_NPROC_PER_NODE is {}, but the recipe's {} ranks on {} hosts are {} on each: change one of them, "
        "or leave it out",
        *options.ranks_per_node, recipe.world_size(), options.nodes, each);
  }
  if (options.nodes > 1 && options.coordinator.empty()) {
    return absl::InvalidArgumentError(
        "--nodes: several nodes need --coordinator HOST:PORT, an address of node 0, the same on all");
  }
  return absl::OkStatus();
}

absl::StatusOr<launch::SupervisorOptions> Prepare(const recipe::Recipe& recipe,
                                                  const LaunchOptions& options) {
  RETURN_IF_ERROR(CheckNodes(recipe, options));
  launch::SupervisorOptions supervisor;
  supervisor.world = recipe.world_size();
  supervisor.local_size = supervisor.world / options.nodes;
  supervisor.all_output = options.all_output;
  supervisor.arguments = launch::OwnArguments();
  ASSIGN_OR_RETURN(supervisor.token, TokenOf(options));
  supervisor.coordinator = {"127.0.0.1", 0};
  if (!options.coordinator.empty()) {
    const absl::StatusOr<launch::Endpoint> endpoint = launch::ParseEndpoint(options.coordinator);
    if (!endpoint.ok()) return WithContext(endpoint.status(), "--coordinator");
    if ((options.node_rank > 0 || KeepInTouch(options)) &&
        (endpoint->host == "0.0.0.0" || endpoint->host == "::")) {
      return InvalidArgument(
          "--coordinator {}: that is every network of one machine and no way to node 0: give a name or an "
          "address of node 0, as in node0:{}, the same on all nodes",
          options.coordinator, endpoint->port);
    }
    supervisor.coordinator = *endpoint;
  }
  return supervisor;
}

// A host may take its own name for a loopback address (Debian's /etc/hosts), where no other host can come.
absl::Status CheckOthersCanCome(const LaunchOptions& options, const launch::Endpoint& coordinator,
                                const launch::Descriptor& listener) {
  const std::string address = launch::LocalAddress(listener);
  const bool is_meant = launch::IsLoopback(coordinator.host) || coordinator.host == "localhost";
  if (options.nodes == 1 || is_meant || !launch::IsLoopback(address)) return absl::OkStatus();
  return Unavailable(
      "--coordinator {}: {} is {} for this machine itself (see its /etc/hosts), and the other hosts cannot "
      "come there: give an address that all can reach",
      coordinator.ToString(), coordinator.host, address);
}

absl::StatusOr<launch::Descriptor> ListenAtCoordinator(const LaunchOptions& options,
                                                       const launch::Endpoint& coordinator) {
  const auto known_by = options.awaits_name ? launch::Clock::now() + RendezvousOf(options).join_timeout
                                            : launch::Clock::time_point::min();
  ASSIGN_OR_RETURN(launch::Descriptor listener, launch::Listen(coordinator, known_by));
  RETURN_IF_ERROR(CheckOthersCanCome(options, coordinator, listener));
  TellWhereEveryoneCanCome(listener, "--coordinator");
  return listener;
}

// Copies of the ranks' states; nothing where no rank would be started again.
absl::StatusOr<HostMemory> MakeHostMemory(const recipe::Recipe& recipe, const LaunchOptions& options) {
  if (!recipe.checkpoint.memory || options.max_restarts == 0) return HostMemory();
  const std::int64_t ranks = recipe.world_size() / options.nodes;
  ASSIGN_OR_RETURN(const std::string token, TokenOf(options));
  return HostMemory::Make(ranks, options.nodes > 1 ? token : "",
                          recipe.checkpoint.memory_partner ? ranks : 0);
}

// Bytes of a variable of a process, of which execve(2) takes no more than 128 KiB: with more hosts than that, a run that has another layout goes on
// from the disk.
constexpr std::size_t kMostCopiesAt = std::size_t{120} << 10;

// The ranks of this host, from their start to their end. Error: they could not be started.
absl::StatusOr<launch::SupervisedEnd> RunOnce(const recipe::Recipe& recipe, const LaunchOptions& options,
                                              const std::string& out, HostMemory& memory,
                                              launch::Survivors& survivors, launch::Roster::Turn turn) {
  ASSIGN_OR_RETURN(launch::SupervisorOptions supervisor, Prepare(recipe, options));
  if (turn.generation > 1) std::erase(supervisor.arguments, "--fresh");  // it goes on with a run
  for (const std::string& setting : SettingsOf(turn.size, recipe))
    supervisor.arguments.insert(supervisor.arguments.end(), {"--set", setting});
  supervisor.world = recipe.world_size() / recipe.parallelism.dp * turn.size.dp;
  supervisor.local_size = supervisor.world / turn.size.nodes;
  supervisor.first_rank = supervisor.local_size * turn.node;
  supervisor.coordinator = turn.ranks_at;
  RETURN_IF_ERROR(memory.SetRanks(supervisor.first_rank, supervisor.local_size));
  if (turn.from_disk) memory.Forget();
  supervisor.memory_files = memory.files();
  supervisor.copies_port = memory.copies_port();
  const bool fits = turn.copies_at.size() < kMostCopiesAt;
  if (turn.generation > 1 && fits) supervisor.copies_at = turn.copies_at;
  if (turn.generation > 1 && !fits) {
    Print(stderr,
          "note: the addresses of all hosts' copies are {} bytes, more than a process is given; with another "
          "layout the "
          "run goes on from the disk\n",
          turn.copies_at.size());
  }
  supervisor.from_disk = turn.from_disk;
  supervisor.is_restart = turn.generation > 1;
  if (turn.from_disk) survivors.End();  // what has failed in vain may be their doing
  if (options.max_restarts > 0) supervisor.survivors = &survivors;
  const bool has_rank_0 = turn.node == 0;
  if (has_rank_0) {
    supervisor.listener = std::move(turn.listener);
    if (!supervisor.listener.open()) {
      ASSIGN_OR_RETURN(supervisor.listener, ListenAtCoordinator(options, supervisor.coordinator));
    }
    supervisor.coordinator.port = launch::PortOf(supervisor.listener);
  }
  ASSIGN_OR_RETURN(launch::SupervisedEnd end,
                   launch::Supervise(std::move(supervisor), {.peer_lost = kPeerLost, .stopped = kStopped}));
  // The process may have kept what is to blame, such as memory that is still taken, so another attempt gets new processes.
  if (end.is_of_survivor && (end.code == kFailed || end.code == kNoDevice)) {
    survivors.End();
    end.code = kPeerLost;
  }
  if (has_rank_0 && end.code != 0 && end.code != kStopped)
    train::FinishOutcome(out, recipe.iterations(), end.verdict, MayGoWell(end.code));
  return end;
}

// As the other hosts are told of it. A name that is not known yet is no fault of the recipe's.
launch::HostEnd HostEndOf(const absl::StatusOr<launch::SupervisedEnd>& end, const LaunchOptions& options,
                          const HostMemory& memory) {
  launch::HostEnd told;
  if (!end.ok()) {
    told.code = Complain(end.status(), options.awaits_name ? kPeerLost : kFailed);
    return told;
  }
  return {.code = end->code,
          .asked_to_stop = end->asked_to_stop,
          .is_suspect = end->code == kMachineSuspect || end->code == kDeviceFailed,
          .verdict = end->verdict,
          .newest = memory.Newest()};
}

}  // namespace

int Complain(const absl::Status& status, int exit_code) {
  const std::string text = Message(status);
  // What is the recipe's fault is located already.
  Print(stderr, "{}{}\n", text.find(": error: ") == std::string::npos ? "engine run: " : "", text);
  return exit_code;
}

void TellOtherNodes(const LaunchOptions& options, std::int64_t world, const absl::Status& why) {
  const absl::StatusOr<launch::Endpoint> coordinator = launch::ParseEndpoint(options.coordinator);
  const absl::StatusOr<std::string> token = TokenOf(options);
  if (options.nodes < 2 || options.node_rank >= options.nodes || !coordinator.ok() || !token.ok()) return;
  const launch::Member self{.rank = -1,
                            .world = world,
                            .build = "",
                            .plan_hash = "",
                            .device = "",
                            .process = fmt::format("node {} ({})", options.node_rank, launch::ProcessName())};
  const std::string what = "failed: " + Message(why);
  launch::RendezvousOptions rendezvous = RendezvousOf(options);
  if (options.node_rank != 0) {
    launch::Client::ReportFailure(*coordinator, *token, self, rendezvous, what);
    return;
  }
  absl::StatusOr<launch::Descriptor> listener = launch::Listen(*coordinator);
  if (!listener.ok()) return;
  rendezvous.linger = std::min(launch::kStartSkew, rendezvous.join_timeout);
  launch::Server::Start(*std::move(listener), *token, self, rendezvous, self.Name() + " " + what);
}

void AddLaunchOptions(CLI::App* command, LaunchOptions* options) {
  command
      ->add_flag("--processes", options->processes,
                 "Start each rank as a process of its own, not as a thread of this one")
      ->group(kProcesses);
  command->add_option("--nodes", options->nodes, "Hosts of the run; start it on each of them")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->capture_default_str()
      ->group(kProcesses);
  command
      ->add_option("--spares", options->spares,
                   "Further hosts, numbered behind those of --nodes: they wait until one of these is lost, "
                   "and stand in for it")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
      ->capture_default_str()
      ->group(kProcesses);
  command
      ->add_option("--min-nodes", options->min_nodes,
                   "Go on without hosts that are lost for good, as long as so many of those of --nodes and "
                   "--spares are left, more than half: with fewer data-parallel ranks and the same global "
                   "batch (default: with all of --nodes alone)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}))
      ->group(kProcesses);
  command->add_option("--node-rank", options->node_rank, "Which of them this is, from 0")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{999'999}))
      ->capture_default_str()
      ->group(kProcesses);
  command
      ->add_option("--coordinator", options->coordinator,
                   "Address of node 0, where its rank 0 listens (default, on one node: 127.0.0.1, any port)")
      ->type_name("HOST:PORT")
      ->group(kProcesses);
  command
      ->add_option(
          "--token-file", options->token_file,
          "Secret by which the processes of a run know each other (default: ENGINE_TOKEN; on one node, a "
          "random one)")
      ->type_name("FILE")
      ->group(kProcesses);
  command
      ->add_flag("--all-output", options->all_output,
                 "Show the standard output of every rank, not of rank 0 alone")
      ->group(kProcesses);
  command
      ->add_option("--max-restarts", options->max_restarts,
                   "How often the ranks are started again, from the newest checkpoint, after "
                   "one was lost or "
                   "killed, a device failed or the run hung; three such failures without a checkpoint "
                   "between them end it")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}))
      ->capture_default_str()
      ->group(kProcesses);
  command
      ->add_option(
          "--stopped-code", options->stopped_code,
          "Exit code of a run that a signal stopped before its end, and that is saved: for a scheduler that "
          "takes 0 for the end of the work")
      ->check(CLI::Range(0, 255))
      ->type_name("CODE")
      ->capture_default_str()
      ->group(kProcesses);
  command
      ->add_option(
          "--retry-code", options->retry_code,
          "Exit code where another try may go well: the device failed, a rank was lost or killed, the run "
          "hung, or a machine is suspect (default: 4, 5, 16, or 128 + n)")
      ->check(CLI::Range(1, 255))
      ->type_name("CODE")
      ->group(kProcesses);
  const auto seconds = [&](const char* name, auto* value, const char* text, double least) {
    return command->add_option(name, *value, text)
        ->check(CLI::Range(least, 1e6))
        ->check(CheckIsNumber)
        ->type_name("SECONDS")
        ->group(kProcesses);
  };
  seconds("--join-timeout", &options->join_timeout_s,
          "How long the ranks wait for each other at the beginning", kLeastTimeout)
      ->capture_default_str();
  seconds("--last-call-timeout", &options->last_call_timeout_s,
          "With --min-nodes, how long a lost host, or another one with its number, is waited for before the "
          "run goes on without it",
          kLeastTimeout)
      ->capture_default_str();
  seconds("--heartbeat-timeout", &options->heartbeat_timeout_s, "After how long a silence a rank is lost",
          kLeastTimeout)
      ->capture_default_str();
  seconds(
      "--hang-timeout", &options->hang_timeout_s,
      "After how long without progress of any rank the run hangs; 0: never (default: it is learned from the "
      "run: docs/processes.md)",
      0);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return InvalidArgument("--token-file {}: cannot be read", path);
  std::string token = text.str();
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) return InvalidArgument("--token-file {}: the file is empty", path);
  RETURN_IF_ERROR(launch::CheckToken("--token-file " + path, token));
  return token;
}

absl::Status CheckUnused(const LaunchOptions& options, const std::optional<launch::Placement>& placement) {
  if (options.max_restarts > 0) {
    return InvalidArgument(
        "--max-restarts: is for runs whose ranks are processes that this one starts: --processes{}",
        placement ? "; here " + placement->source + " has started them" : "");
  }
  if (!placement && options.nodes_given && options.spares == 0 && options.min_nodes.value_or(1) == 1)
    return absl::OkStatus();  // a script for any number of hosts, on one
  const std::string why =
      placement ? placement->source +
                      " has started the ranks and says which this is and where they meet (ENGINE_COORDINATOR "
                      "replaces the address)"
                : "is for ranks that meet each other, and this run is one process: --nodes N says how many "
                  "hosts it has, --processes that each rank is a process";
  if (options.spares > 0) return InvalidArgument("--spares: {}", why);
  if (options.min_nodes) return InvalidArgument("--min-nodes: {}", why);
  if (options.node_rank != 0) return InvalidArgument("--node-rank: {}", why);
  if (!options.coordinator.empty()) return InvalidArgument("--coordinator: {}", why);
  // The ranks of a launcher show it each other.
  if (!placement && !options.token_file.empty()) return InvalidArgument("--token-file: {}", why);
  return absl::OkStatus();
}

absl::StatusOr<bool> TakeNode(const launch::Lookup& lookup, LaunchOptions* options) {
  if (options->nodes_given && options->node_rank_given && !options->coordinator.empty()) return false;
  ASSIGN_OR_RETURN(const std::optional<launch::NodePlace> place, launch::FindNode(lookup));
  if (!place) return false;
  if (!options->nodes_given && place->nodes) {
    options->nodes = std::max<std::int64_t>(1, *place->nodes - options->spares);
    options->nodes_given = true;
    options->ranks_per_node = place->ranks_per_node;
  }
  if (options->nodes == 1) return place->nodes.has_value();
  if (!options->node_rank_given) options->node_rank = place->node_rank;
  if (options->coordinator.empty() && place->coordinator) {
    options->coordinator = place->coordinator->ToString();
    options->awaits_name = true;
    options->derived_token = place->token;
  }
  return place->nodes.has_value();
}

int FinalCode(int code, const LaunchOptions& options) {
  if (code == kStopped) return options.stopped_code;
  return MayGoWell(code) ? options.retry_code.value_or(code) : code;
}

launch::Milliseconds MillisecondsOf(double seconds) {
  return std::chrono::duration_cast<launch::Milliseconds>(std::chrono::duration<double>(seconds));
}

launch::RendezvousOptions RendezvousOf(const LaunchOptions& options) {
  return {.join_timeout = MillisecondsOf(options.join_timeout_s),
          .heartbeat_timeout = MillisecondsOf(options.heartbeat_timeout_s),
          .hang_timeout =
              options.hang_timeout_s ? std::optional(MillisecondsOf(*options.hang_timeout_s)) : std::nullopt};
}

int RunProcesses(const recipe::Recipe& recipe, const Reload& reload, const DeviceChoice& device,
                 const LaunchOptions& options, const std::string& out, bool fresh) {
  const auto refuse = [&](const absl::Status& status, int exit_code) {
    Complain(status, exit_code);
    TellOtherNodes(options, recipe.world_size(), status);
    return exit_code;
  };
  if (const absl::Status fits = Prepare(recipe, options).status(); !fits.ok()) return refuse(fits, kUsage);
  const plan::DeviceProfile profile = ProfileOf(recipe, device);
  if (const absl::Status status = train::Check(recipe, profile); !status.ok()) {
    return refuse(status, kFailed);
  }
  absl::StatusOr<HostMemory> memory = MakeHostMemory(recipe, options);
  if (!memory.ok()) return refuse(memory.status(), kFailed);
  const launch::Endpoint coordinator = Prepare(recipe, options)->coordinator;
  launch::Descriptor listener;
  if (KeepInTouch(options) && options.node_rank == 0) {
    absl::StatusOr<launch::Descriptor> made = ListenAtCoordinator(options, coordinator);
    if (!made.ok())
      return FinalCode(Complain(made.status(), options.awaits_name ? kPeerLost : kFailed), options);
    listener = *std::move(made);
  }
  const absl::StatusOr<std::string> token = TokenOf(options);
  SmallerLayouts layouts(recipe, options.nodes, [&](const std::vector<std::string>& sets) {
    const recipe::LoadResult smaller = reload(sets);
    return smaller.ok() && train::Check(smaller.recipe, profile).ok();
  });
  const auto has_finished = [&] { return !fresh && train::HasFinished(out, recipe.iterations()); };
  Attempts attempts(options, {.nodes = options.nodes, .dp = recipe.parallelism.dp}, layouts, coordinator,
                    *token, out, has_finished, std::move(listener), memory->copies_port());
  launch::Survivors survivors;
  for (std::optional<launch::HostEnd> end;;) {
    launch::Roster::Turn turn = attempts.Next(end);
    if (turn.over) return FinalCode(turn.code, options);
    end = HostEndOf(RunOnce(recipe, options, out, *memory, survivors, std::move(turn)), options, *memory);
  }
}

}  // namespace engine::cli

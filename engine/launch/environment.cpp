#include "engine/launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "engine/base/hash.h"
#include "engine/base/status.h"

namespace engine::launch {
namespace {

// Variables of one launcher.
class Variables {
 public:
  Variables(std::string source, const Lookup& lookup) : source_(std::move(source)), lookup_(lookup) {}

  bool Has(const std::string& name) const { return lookup_(name).has_value(); }
  std::string TextOr(const std::string& name, const std::string& otherwise) const {
    return lookup_(name).value_or(otherwise);
  }
  absl::StatusOr<std::string> Text(const std::string& name) const {
    const std::optional<std::string> value = lookup_(name);
    if (value && !value->empty()) return *value;
    return InvalidArgument("{}: {} is {}, but others of its variables are there", source_, name,
                           value ? "empty" : "not set");
  }
  absl::StatusOr<std::int64_t> Number(const std::string& name, std::int64_t least, std::int64_t most) const {
    ASSIGN_OR_RETURN(const std::string text, Text(name));
    std::int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || last != end || number < least || number > most) {
      return InvalidArgument("{}: {} is '{}', and must be a number from {} to {}", source_, name, text, least,
                             most);
    }
    return number;
  }
  absl::StatusOr<std::int64_t> NumberOr(const std::string& name, std::int64_t otherwise, std::int64_t least,
                                        std::int64_t most) const {
    if (!Has(name)) return otherwise;
    return Number(name, least, most);
  }
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  const Lookup& lookup_;
};

constexpr std::int64_t kMostRanks = 1'000'000;
constexpr std::int64_t kMostPort = 65535;
constexpr std::int64_t kMostDescriptor = std::numeric_limits<int>::max();

struct RankNames {
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_size;  // "": there is none
};

// The four numbers; local ones that are not set: alone on its host.
absl::StatusOr<Placement> ReadRanks(const Variables& variables, const RankNames& names) {
  Placement placement;
  placement.source = variables.source();
  ASSIGN_OR_RETURN(placement.world, variables.Number(names.world, 1, kMostRanks));
  ASSIGN_OR_RETURN(placement.rank, variables.Number(names.rank, 0, placement.world - 1));
  ASSIGN_OR_RETURN(placement.local_rank, variables.NumberOr(names.local_rank, 0, 0, placement.rank));
  if (variables.Has(names.local_size) || placement.local_rank == 0) {
    ASSIGN_OR_RETURN(placement.local_size, variables.NumberOr(names.local_size, 1, 1, placement.world));
  } else {
    placement.local_size = placement.local_rank + 1;
  }
  if (placement.local_rank >= placement.local_size) {
    return InvalidArgument("{}: {} is {}, but {} is {}: ranks of a host count from 0", variables.source(),
                           names.local_rank, placement.local_rank, names.local_size, placement.local_size);
  }
  return placement;
}

// A port that follows from a job's id, below those that systems hand out by themselves (from 32768).
int PortOfJob(const std::string& job) {
  constexpr std::uint64_t kFirst = 10'000;
  constexpr std::uint64_t kCount = 20'000;
  constexpr int kHexDigits = 12;
  const std::uint64_t number = std::stoull(HashHex(job).substr(0, kHexDigits), nullptr, 16);
  return static_cast<int>(kFirst + number % kCount);
}

// What replaces a launcher's own coordinator and token.
absl::Status Finish(const Variables& variables, const std::string& job, Placement* placement) {
  if (variables.Has("ENGINE_COORDINATOR")) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(variables.TextOr("ENGINE_COORDINATOR", ""));
    if (!endpoint.ok()) return WithContext(endpoint.status(), "ENGINE_COORDINATOR");
    placement->coordinator = *endpoint;
  }
  placement->token = variables.TextOr("ENGINE_TOKEN", "");
  if (placement->token.empty()) {  // set to nothing: any stranger could show that
    placement->token = HashHex(fmt::format("{} {} {}", placement->source, job, static_cast<long>(getuid())));
  }
  return CheckToken("ENGINE_TOKEN", placement->token);
}

absl::StatusOr<std::optional<Placement>> FromEngine(const Lookup& lookup) {
  const Variables variables(kOwnSource, lookup);
  if (!variables.Has("ENGINE_RANK") && !variables.Has("ENGINE_WORLD_SIZE")) return std::nullopt;
  for (const char* name : {"ENGINE_LOCAL_RANK", "ENGINE_LOCAL_SIZE", "ENGINE_COORDINATOR", "ENGINE_TOKEN"}) {
    RETURN_IF_ERROR(variables.Text(name).status());
  }
  ASSIGN_OR_RETURN(Placement placement, ReadRanks(variables, {"ENGINE_RANK", "ENGINE_WORLD_SIZE",
                                                              "ENGINE_LOCAL_RANK", "ENGINE_LOCAL_SIZE"}));
  ASSIGN_OR_RETURN(const std::int64_t listener, variables.NumberOr("ENGINE_LISTENER", -1, 0, kMostPort));
  placement.listener = static_cast<int>(listener);
  ASSIGN_OR_RETURN(const std::int64_t memory, variables.NumberOr("ENGINE_MEMORY", -1, 0, kMostDescriptor));
  placement.memory = static_cast<int>(memory);
  ASSIGN_OR_RETURN(const std::int64_t copies, variables.NumberOr("ENGINE_COPIES", 0, 1, kMostPort));
  placement.copies_port = static_cast<int>(copies);
  placement.copies_at = variables.TextOr("ENGINE_COPIES_AT", "");
  placement.from_disk = variables.Has("ENGINE_FROM_DISK");
  placement.is_restart = variables.Has("ENGINE_RESTART");
  ASSIGN_OR_RETURN(const std::int64_t next, variables.NumberOr("ENGINE_NEXT_PLACE", -1, 0, kMostDescriptor));
  placement.next_place = static_cast<int>(next);
  RETURN_IF_ERROR(Finish(variables, "", &placement));
  return placement;
}

absl::StatusOr<std::optional<Placement>> FromTorchrun(const Lookup& lookup) {
  const Variables variables("torchrun", lookup);
  if (!variables.Has("RANK") && !variables.Has("WORLD_SIZE")) return std::nullopt;
  ASSIGN_OR_RETURN(Placement placement,
                   ReadRanks(variables, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  ASSIGN_OR_RETURN(placement.coordinator.host, variables.Text("MASTER_ADDR"));
  ASSIGN_OR_RETURN(std::int64_t port, variables.Number("MASTER_PORT", 1, kMostPort - 1));
  if (variables.TextOr("TORCHELASTIC_USE_AGENT_STORE", "") == "True") ++port;  // its agent listens there
  placement.coordinator.port = static_cast<int>(port);
  if (variables.Has("TORCHELASTIC_RUN_ID")) placement.parent = getppid();  // the agent; a pod has none
  const std::string job = variables.TextOr("TORCHELASTIC_RUN_ID", "") + placement.coordinator.ToString();
  RETURN_IF_ERROR(Finish(variables, job, &placement));
  return placement;
}

// Of an MPI launcher, whose processes on a host are children of one daemon. `job`: a variable that names the
// job on all hosts; `set`: how it gives its processes a variable.
absl::StatusOr<std::optional<Placement>> FromMpi(const Variables& variables, const RankNames& names,
                                                 const std::string& job_name, const std::string& set) {
  if (!variables.Has(names.rank) && !variables.Has(names.world)) return std::nullopt;
  ASSIGN_OR_RETURN(Placement placement, ReadRanks(variables, names));
  placement.parent = getppid();
  placement.bound_within = 0;
  const std::string job = variables.TextOr(job_name, fmt::format("parent {}", placement.parent));
  if (variables.Has("MASTER_ADDR")) {
    ASSIGN_OR_RETURN(const std::int64_t port,
                     variables.NumberOr("MASTER_PORT", PortOfJob(job), 1, kMostPort));
    placement.coordinator = {variables.TextOr("MASTER_ADDR", ""), static_cast<int>(port)};
  } else if (placement.local_size == placement.world) {
    placement.coordinator = {"127.0.0.1", PortOfJob(job)};
  } else if (!variables.Has("ENGINE_COORDINATOR")) {
    return InvalidArgument(
        "{}: ranks are on several hosts, so ENGINE_COORDINATOR must say where rank 0 listens: {}",
        variables.source(), set);
  }
  // The parent's process id tells a job from others on one host only.
  const std::string known = variables.TextOr(job_name, placement.coordinator.ToString());
  RETURN_IF_ERROR(Finish(variables, known, &placement));
  return placement;
}

absl::StatusOr<std::optional<Placement>> FromOpenMpi(const Lookup& lookup) {
  return FromMpi(Variables("Open MPI", lookup),
                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                  "OMPI_COMM_WORLD_LOCAL_SIZE"},
                 "PMIX_NAMESPACE", "mpirun -x ENGINE_COORDINATOR=HOST:PORT …");
}

absl::StatusOr<std::optional<Placement>> FromPmi(const Lookup& lookup) {
  return FromMpi(Variables("PMI", lookup), {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                 "PMI_JOBID", "mpiexec -genv ENGINE_COORDINATOR HOST:PORT …");
}

// Tasks of this node, of "4(x2),3": four on each of the first two nodes, three on the next.
std::int64_t TasksOfNode(std::string_view list, std::int64_t node) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    std::int64_t tasks = 0;
    std::int64_t repeats = 1;
    std::from_chars(item.data(), item.data() + item.size(), tasks);
    if (const std::size_t times = item.find("(x"); times != std::string_view::npos) {
      std::from_chars(item.data() + times + 2, item.data() + item.size(), repeats);
    }
    if (node < repeats) return tasks;
    node -= repeats;
    list.remove_prefix(std::min(list.size(), item.size() + 1));
  }
  return 0;
}

absl::StatusOr<std::optional<Placement>> FromSlurm(const Lookup& lookup) {
  const Variables variables("SLURM", lookup);
  if (!variables.Has("SLURM_NTASKS")) return std::nullopt;
  ASSIGN_OR_RETURN(const std::int64_t tasks, variables.Number("SLURM_NTASKS", 1, kMostRanks));
  if (tasks == 1) return std::nullopt;
  if (!variables.Has("SLURM_STEP_ID")) {
    return InvalidArgument(
        "SLURM: SLURM_NTASKS is {}, but SLURM_STEP_ID is not set: start it by `srun engine run …`, or unset "
        "SLURM_NTASKS to run one process",
        tasks);
  }
  ASSIGN_OR_RETURN(Placement placement,
                   ReadRanks(variables, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""}));
  ASSIGN_OR_RETURN(placement.bound_within, variables.NumberOr("SLURM_CPUS_ON_NODE", 0, 1, kMostRanks));
  ASSIGN_OR_RETURN(const std::int64_t node, variables.NumberOr("SLURM_NODEID", 0, 0, kMostRanks));
  const std::string per_node =
      variables.TextOr("SLURM_STEP_TASKS_PER_NODE", variables.TextOr("SLURM_TASKS_PER_NODE", ""));
  placement.local_size = std::max(placement.local_size, TasksOfNode(per_node, node));
  ASSIGN_OR_RETURN(const std::string id, variables.Text("SLURM_JOB_ID"));
  const std::string job = id + "." + variables.TextOr("SLURM_STEP_ID", "");
  const std::string nodes =
      variables.TextOr("SLURM_STEP_NODELIST", variables.TextOr("SLURM_JOB_NODELIST", ""));
  if (nodes.empty() && !variables.Has("ENGINE_COORDINATOR")) {
    return InvalidArgument("SLURM: SLURM_STEP_NODELIST is not set, so rank 0's host is not known");
  }
  placement.coordinator = {FirstHost(nodes), PortOfJob(job)};
  placement.guessed_host = placement.local_size < placement.world && !variables.Has("ENGINE_COORDINATOR");
  RETURN_IF_ERROR(Finish(variables, job, &placement));
  return placement;
}

// PMIx by itself says which rank this is, but in its variables not of how many.
absl::StatusOr<std::optional<Placement>> FromPmix(const Lookup& lookup) {
  const Variables variables("PMIx", lookup);
  if (!variables.Has("PMIX_RANK") || variables.Has("SLURM_NTASKS")) return std::nullopt;
  return InvalidArgument(
      "PMIx: PMIX_RANK is {}, but no variable says how many ranks there are: start them by mpirun, srun or "
      "torchrun, or give RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; unset "
      "PMIX_RANK to run one process",
      variables.TextOr("PMIX_RANK", ""));
}

constexpr int kNodePort = 29500;  // torchrun's default

absl::StatusOr<std::optional<NodePlace>> NodeOfPet(const Lookup& lookup) {
  const Variables variables("PET_*", lookup);
  if (!variables.Has("PET_NNODES") || !variables.Has("PET_NODE_RANK")) return std::nullopt;
  const std::string nodes = variables.TextOr("PET_NNODES", "");
  if (nodes.find(':') != std::string::npos) {
    return InvalidArgument(
        "PET_*: PET_NNODES is '{}', but a run has as many hosts as its recipe's layout needs: give one "
        "number",
        nodes);
  }
  NodePlace place = {.source = variables.source()};
  ASSIGN_OR_RETURN(place.nodes, variables.Number("PET_NNODES", 1, kMostRanks));
  ASSIGN_OR_RETURN(place.node_rank, variables.Number("PET_NODE_RANK", 0, *place.nodes - 1));
  const std::string each =
      variables.TextOr("PET_NPROC_PER_NODE", "auto");  // auto, gpu and cpu ask torchrun to count
  if (!each.empty() && each.find_first_not_of("0123456789") == std::string::npos) {
    ASSIGN_OR_RETURN(place.ranks_per_node, variables.Number("PET_NPROC_PER_NODE", 1, kMostRanks));
  }
  const std::string begin = variables.Has("PET_MASTER_ADDR") ? "PET_MASTER" : "MASTER";
  if (*place.nodes > 1 && (variables.Has(begin + "_ADDR") || !variables.Has("ENGINE_COORDINATOR"))) {
    Endpoint coordinator;
    ASSIGN_OR_RETURN(coordinator.host, variables.Text(begin + "_ADDR"));
    ASSIGN_OR_RETURN(const std::int64_t port, variables.NumberOr(begin + "_PORT", kNodePort, 1, kMostPort));
    coordinator.port = static_cast<int>(port);
    place.coordinator = coordinator;
  }
  return place;
}

absl::StatusOr<std::optional<NodePlace>> NodeOfLeaderWorkerSet(const Lookup& lookup) {
  const Variables variables("LeaderWorkerSet", lookup);
  if (!variables.Has("LWS_GROUP_SIZE") || !variables.Has("LWS_WORKER_INDEX")) return std::nullopt;
  NodePlace place = {.source = variables.source()};
  ASSIGN_OR_RETURN(place.nodes, variables.Number("LWS_GROUP_SIZE", 1, kMostRanks));
  ASSIGN_OR_RETURN(place.node_rank, variables.Number("LWS_WORKER_INDEX", 0, *place.nodes - 1));
  ASSIGN_OR_RETURN(const std::string leader, variables.Text("LWS_LEADER_ADDRESS"));
  place.coordinator = {leader, kNodePort};
  return place;
}

absl::StatusOr<std::optional<NodePlace>> NodeOfSkyPilot(const Lookup& lookup) {
  const Variables variables("SkyPilot", lookup);
  if (!variables.Has("SKYPILOT_NUM_NODES") || !variables.Has("SKYPILOT_NODE_RANK")) return std::nullopt;
  NodePlace place = {.source = variables.source()};
  ASSIGN_OR_RETURN(place.nodes, variables.Number("SKYPILOT_NUM_NODES", 1, kMostRanks));
  ASSIGN_OR_RETURN(place.node_rank, variables.Number("SKYPILOT_NODE_RANK", 0, *place.nodes - 1));
  ASSIGN_OR_RETURN(const std::string addresses, variables.Text("SKYPILOT_NODE_IPS"));
  place.coordinator = {addresses.substr(0, addresses.find('\n')), kNodePort};
  return place;
}

absl::StatusOr<std::optional<NodePlace>> NodeOfIndexedJob(const Lookup& lookup) {
  const Variables variables("indexed Job", lookup);
  if (!variables.Has("JOB_COMPLETION_INDEX")) return std::nullopt;
  NodePlace place = {.source = variables.source()};
  ASSIGN_OR_RETURN(place.node_rank, variables.Number("JOB_COMPLETION_INDEX", 0, kMostRanks - 1));
  return place;
}

}  // namespace

absl::StatusOr<std::optional<NodePlace>> FindNode(const Lookup& lookup) {
  for (const char* of_a_rank :
       {"LOCAL_RANK", "ENGINE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (lookup(of_a_rank)) return std::nullopt;
  }
  std::optional<NodePlace> place;
  for (const auto find : {NodeOfPet, NodeOfLeaderWorkerSet, NodeOfSkyPilot, NodeOfIndexedJob}) {
    ASSIGN_OR_RETURN(place, find(lookup));
    if (place) break;
  }
  const std::optional<std::string> coordinator = lookup("ENGINE_COORDINATOR");
  if (place && coordinator) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(*coordinator);
    if (!endpoint.ok()) return WithContext(endpoint.status(), "ENGINE_COORDINATOR");
    place->coordinator = *endpoint;
  }
  if (place && place->coordinator) {
    place->token = HashHex(
        fmt::format("{} {} {}", place->source, place->coordinator->ToString(), static_cast<long>(getuid())));
  }
  return place;
}

absl::Status CheckToken(const std::string& where, const std::string& token) {
  constexpr std::size_t kMost = 256;
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (printable && token.size() <= kMost) return absl::OkStatus();
  return InvalidArgument(
      "{}: a token is one line of at most {} printable ASCII characters, as `openssl rand -hex 16` writes it",
      where, kMost);
}

Lookup ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string FirstHost(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t close = std::min(list.find(']', i), list.size());
    host += list.substr(i + 1, std::min(list.find_first_of("-,]", i), close) - i - 1);
    i = close;
  }
  return host;
}

absl::StatusOr<std::optional<Placement>> FindPlacement(const Lookup& lookup) {
  for (const auto find : {FromEngine, FromTorchrun, FromOpenMpi, FromSlurm, FromPmi, FromPmix}) {
    ASSIGN_OR_RETURN(std::optional<Placement> placement, find(lookup));
    if (placement) return placement;
  }
  return std::nullopt;
}

}  // namespace engine::launch

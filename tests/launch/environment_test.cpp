#include "engine/launch/environment.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <map>

#include "engine/base/status.h"

namespace engine::launch {
namespace {

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<Placement>> Find(const Variables& variables) {
  return FindPlacement([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

Placement MustFind(const Variables& variables) {
  const auto found = Find(variables);
  REQUIRE_MESSAGE(found.ok(), Message(found.status()));
  REQUIRE(found->has_value());
  return **found;
}

void CheckError(const Variables& variables, const std::string& text) {
  const auto found = Find(variables);
  REQUIRE(!found.ok());
  CHECK(Message(found.status()) == text);
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29400"}};
const Variables kSlurm = {{"SLURM_NTASKS", "6"},
                          {"SLURM_PROCID", "4"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
                          {"SLURM_STEP_NODELIST", "gpu[007,009-010]"},
                          {"SLURM_JOB_ID", "4711"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "prterun-a-1"}};
const Variables kEngine = {{"ENGINE_RANK", "3"},       {"ENGINE_WORLD_SIZE", "4"},
                           {"ENGINE_LOCAL_RANK", "1"}, {"ENGINE_LOCAL_SIZE", "2"},
                           {"ENGINE_TOKEN", "t"},      {"ENGINE_COORDINATOR", "a:1"}};

Variables With(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

}  // namespace

TEST_CASE("environment: no launcher") {
  CHECK(!Find({})->has_value());
  CHECK(!Find({{"MASTER_ADDR", "x"}, {"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}})
             ->has_value());
}

TEST_CASE("environment: our supervisor") {
  const Placement placement = MustFind(With(kEngine, "RANK", "77"));  // ours counts
  CHECK(placement.source == "engine run");
  CHECK(placement.rank == 3);
  CHECK(placement.world == 4);
  CHECK(placement.local_rank == 1);
  CHECK(placement.local_size == 2);
  CHECK(placement.coordinator.ToString() == "a:1");
  CHECK(placement.token == "t");
  CHECK(placement.listener == -1);
  CHECK(!placement.bound_within);
  CHECK(MustFind(With(kEngine, "ENGINE_LISTENER", "9")).listener == 9);
  CheckError(Without(kEngine, "ENGINE_TOKEN"),
             "engine run: ENGINE_TOKEN is not set, but others of its variables are there");
  CheckError(Without(kEngine, "ENGINE_RANK"),
             "engine run: ENGINE_RANK is not set, but others of its variables are there");
  CheckError(With(kEngine, "ENGINE_RANK", "4"),
             "engine run: ENGINE_RANK is '4', and must be a number from 0 to 3");
  CheckError(With(kEngine, "ENGINE_COORDINATOR", "here"),
             "ENGINE_COORDINATOR: 'here' is not HOST:PORT, as in node0:29500 or [fd00::1]:29500");
}

TEST_CASE("environment: torchrun and PyTorchJob") {
  const Placement placement = MustFind(kTorchrun);
  CHECK(placement.source == "torchrun");
  CHECK(placement.rank == 5);
  CHECK(placement.world == 8);
  CHECK(placement.local_rank == 1);
  CHECK(placement.local_size == 4);
  CHECK(placement.coordinator.ToString() == "node0:29400");
  CHECK(placement.token.size() == 32);
  CHECK(!placement.bound_within);
  // Torchrun's agent has the port itself.
  CHECK(MustFind(With(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True")).coordinator.port == 29401);
  CHECK(MustFind(With(kTorchrun, "TORCHELASTIC_RUN_ID", "other")).token != placement.token);
  CHECK(MustFind(With(kTorchrun, "ENGINE_TOKEN", "mine")).token == "mine");
  CHECK(MustFind(With(kTorchrun, "ENGINE_TOKEN", "")).token == placement.token);  // nothing is no secret
  CheckError(
      With(kTorchrun, "ENGINE_TOKEN", "two\nlines"),
      "ENGINE_TOKEN: a token is one line of at most 256 printable ASCII characters, as `openssl rand -hex "
      "16` writes it");
  CHECK(MustFind(With(kTorchrun, "ENGINE_COORDINATOR", "x:7")).coordinator.ToString() == "x:7");
  // Its agent is there as long as its ranks, where it is torchrun itself.
  CHECK(MustFind(With(kTorchrun, "TORCHELASTIC_RUN_ID", "none")).parent == getppid());
  CHECK(placement.parent == 0);
  // A PyTorchJob has one process a pod.
  const Placement pod = MustFind(Without(Without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  CHECK(pod.local_rank == 0);
  CHECK(pod.local_size == 1);
  CheckError(Without(kTorchrun, "WORLD_SIZE"),
             "torchrun: WORLD_SIZE is not set, but others of its variables are there");
  CheckError(Without(kTorchrun, "MASTER_PORT"),
             "torchrun: MASTER_PORT is not set, but others of its variables are there");
  CheckError(With(kTorchrun, "RANK", "x"), "torchrun: RANK is 'x', and must be a number from 0 to 7");
  CheckError(With(kTorchrun, "LOCAL_WORLD_SIZE", "1"),
             "torchrun: LOCAL_RANK is 1, but LOCAL_WORLD_SIZE is 1: ranks of a host count from 0");
}

TEST_CASE("environment: SLURM") {
  const Placement placement = MustFind(kSlurm);
  CHECK(placement.source == "SLURM");
  CHECK(placement.rank == 4);
  CHECK(placement.world == 6);
  CHECK(placement.local_size == 2);
  CHECK(placement.coordinator.host == "gpu007");
  CHECK(placement.coordinator.port >= 10000);
  CHECK(placement.coordinator.port < 30000);
  CHECK(MustFind(With(kSlurm, "SLURM_PROCID", "0")).coordinator.port == placement.coordinator.port);
  CHECK(MustFind(With(kSlurm, "SLURM_PROCID", "0")).token == placement.token);
  CHECK(MustFind(With(kSlurm, "SLURM_JOB_ID", "4712")).coordinator.port != placement.coordinator.port);
  CHECK(MustFind(With(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "1(x2),4")).local_size == 4);
  CHECK(MustFind(kSlurm).bound_within == 0);  // as many cores as the machine has
  CHECK(MustFind(With(kSlurm, "SLURM_CPUS_ON_NODE", "16")).bound_within == 16);
  // A host's name, which nobody gave, must be good for ranks on other hosts.
  CHECK(placement.guessed_host);
  CHECK(!MustFind(With(kSlurm, "ENGINE_COORDINATOR", "x:7")).guessed_host);
  CHECK(!MustFind(With(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "1(x2),6")).guessed_host);
  CHECK(placement.parent == 0);  // SLURM itself ends what its daemon leaves behind
  CheckError(Without(kSlurm, "SLURM_STEP_ID"),
             "SLURM: SLURM_NTASKS is 6, but SLURM_STEP_ID is not set: start it by `srun engine run …`, or "
             "unset SLURM_NTASKS to run one process");
  CheckError(Without(kSlurm, "SLURM_STEP_NODELIST"),
             "SLURM: SLURM_STEP_NODELIST is not set, so rank 0's host is not known");
  CHECK(FirstHost("one") == "one");
  CHECK(FirstHost("a1,b2") == "a1");
  CHECK(FirstHost("n[12]") == "n12");
  CHECK(FirstHost("rack[03-05,9]n[1-2],other") == "rack03n1");
  CHECK(FirstHost("broken[3") == "broken3");
  CHECK(FirstHost("") == "");
}

TEST_CASE("environment: PMI, and PMIx alone") {
  const Variables pmi = {
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  CheckError(pmi,
             "PMI: ranks are on several hosts, so ENGINE_COORDINATOR must say where rank 0 listens: mpiexec "
             "-genv ENGINE_COORDINATOR HOST:PORT …");
  const Placement placement = MustFind(With(pmi, "ENGINE_COORDINATOR", "h:9"));
  CHECK(placement.source == "PMI");
  CHECK(placement.rank == 3);
  CHECK(placement.world == 4);
  CHECK(placement.local_rank == 1);
  CHECK(placement.local_size == 2);
  CHECK(placement.coordinator.ToString() == "h:9");
  const Variables one_host = With(pmi, "MPI_LOCALNRANKS", "4");
  CHECK(MustFind(one_host).coordinator.host == "127.0.0.1");
  CHECK(MustFind(With(one_host, "PMI_RANK", "1")).coordinator.port == MustFind(one_host).coordinator.port);
  CheckError(Without(pmi, "PMI_SIZE"), "PMI: PMI_SIZE is not set, but others of its variables are there");
  CheckError(
      {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "a"}},
      "PMIx: PMIX_RANK is 1, but no variable says how many ranks there are: start them by mpirun, srun "
      "or torchrun, or give RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
      "MASTER_PORT; unset PMIX_RANK to run one process");
  // Under srun --mpi=pmix, of one task too, SLURM says all.
  Variables slurm = kSlurm;
  slurm["PMIX_RANK"] = "4";
  CHECK(MustFind(slurm).source == "SLURM");
  CHECK(!Find({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}})->has_value());
}

TEST_CASE("environment: Open MPI, also where SLURM gave it its nodes") {
  Variables variables = kSlurm;
  variables.insert(kOpenMpi.begin(), kOpenMpi.end());
  const Placement placement = MustFind(variables);
  CHECK(placement.source == "Open MPI");
  CHECK(placement.bound_within == 0);
  CHECK(placement.rank == 1);
  CHECK(placement.world == 2);
  CHECK(placement.local_rank == 1);
  CHECK(placement.parent == getppid());
  CHECK(placement.coordinator.host == "127.0.0.1");
  CHECK(MustFind(With(kOpenMpi, "OMPI_COMM_WORLD_RANK", "1")).coordinator.port == placement.coordinator.port);
  const Placement told = MustFind(With(With(kOpenMpi, "MASTER_ADDR", "m"), "MASTER_PORT", "5"));
  CHECK(told.coordinator.ToString() == "m:5");
  const Variables several = With(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "4");
  CheckError(several,
             "Open MPI: ranks are on several hosts, so ENGINE_COORDINATOR must say where rank 0 listens: "
             "mpirun -x ENGINE_COORDINATOR=HOST:PORT …");
  CHECK(MustFind(With(several, "ENGINE_COORDINATOR", "h:9")).coordinator.ToString() == "h:9");
}

namespace {

absl::StatusOr<std::optional<NodePlace>> FindNodeIn(const Variables& variables) {
  return FindNode([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

NodePlace MustFindNode(const Variables& variables) {
  const auto found = FindNodeIn(variables);
  REQUIRE_MESSAGE(found.ok(), Message(found.status()));
  REQUIRE(found->has_value());
  return **found;
}

std::string NodeError(const Variables& variables) { return Message(FindNodeIn(variables).status()); }

const Variables kPod = {{"PET_NNODES", "4"},          {"PET_NODE_RANK", "3"},
                        {"PET_NPROC_PER_NODE", "8"},  {"PET_MASTER_ADDR", "m-0"},
                        {"PET_MASTER_PORT", "29400"}, {"MASTER_ADDR", "other"},
                        {"MASTER_PORT", "23456"},     {"RANK", "3"},
                        {"WORLD_SIZE", "4"}};

}  // namespace

TEST_CASE("nodes: what starts a process on each host says which host it is") {
  const NodePlace pod = MustFindNode(kPod);
  CHECK(pod.nodes == 4);
  CHECK(pod.node_rank == 3);
  CHECK(pod.ranks_per_node == 8);
  CHECK(pod.coordinator->ToString() == "m-0:29400");
  CHECK_FALSE(MustFindNode(With(kPod, "PET_NPROC_PER_NODE", "auto")).ranks_per_node);
  Variables without = kPod;
  without.erase("PET_MASTER_ADDR");
  CHECK(MustFindNode(without).coordinator->ToString() == "other:23456");
  CHECK(MustFindNode(With(kPod, "ENGINE_COORDINATOR", "mine:1")).coordinator->ToString() == "mine:1");
  CHECK_FALSE(FindNodeIn(With(kPod, "LOCAL_RANK", "0"))->has_value());  // a rank of torchrun
  CHECK_FALSE(FindNodeIn(With(kPod, "OMPI_COMM_WORLD_RANK", "0"))->has_value());
  CHECK_FALSE(FindNodeIn(With(kPod, "PMI_RANK", "0"))->has_value());
  CHECK_FALSE(FindNodeIn({{"RANK", "0"}})->has_value());
  CHECK(pod.token.size() == 32);
  CHECK(MustFindNode(With(kPod, "PET_NODE_RANK", "0")).token == pod.token);

  const NodePlace group =
      MustFindNode({{"LWS_GROUP_SIZE", "2"}, {"LWS_WORKER_INDEX", "1"}, {"LWS_LEADER_ADDRESS", "lead.svc"}});
  CHECK(group.nodes == 2);
  CHECK(group.node_rank == 1);
  CHECK(group.coordinator->ToString() == "lead.svc:29500");
  const NodePlace sky = MustFindNode({{"SKYPILOT_NUM_NODES", "2"},
                                      {"SKYPILOT_NODE_RANK", "1"},
                                      {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2"}});
  CHECK(sky.nodes == 2);
  CHECK(sky.node_rank == 1);
  CHECK(sky.coordinator->ToString() == "10.0.0.1:29500");
  const NodePlace indexed = MustFindNode({{"JOB_COMPLETION_INDEX", "5"}});
  CHECK_FALSE(indexed.nodes);
  CHECK(indexed.node_rank == 5);
  CHECK_FALSE(indexed.coordinator);
}

TEST_CASE("nodes: variables that mean nothing are refused by name") {
  CHECK(NodeError(With(kPod, "PET_NNODES", "1:64")) ==
        "PET_*: PET_NNODES is '1:64', but a run has as many hosts as its recipe's layout needs: give one "
        "number");
  CHECK(NodeError(With(kPod, "PET_NODE_RANK", "4")) ==
        "PET_*: PET_NODE_RANK is '4', and must be a number from 0 to 3");
  CHECK(NodeError(With(kPod, "PET_MASTER_PORT", "x")) ==
        "PET_*: PET_MASTER_PORT is 'x', and must be a number from 1 to 65535");
  CHECK(NodeError({{"LWS_GROUP_SIZE", "2"}, {"LWS_WORKER_INDEX", "1"}}) ==
        "LeaderWorkerSet: LWS_LEADER_ADDRESS is not set, but others of its variables are there");
  CHECK(NodeError(With(kPod, "ENGINE_COORDINATOR", "nowhere"))
            .starts_with("ENGINE_COORDINATOR: 'nowhere' is not"));
}

}  // namespace engine::launch

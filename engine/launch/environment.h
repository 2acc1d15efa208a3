// Where this process stands in a run, as the program that started it says in environment variables.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/launch/socket.h"

namespace engine::launch {

inline constexpr const char* kOwnSource = "engine run";  // started by our supervisor

struct Placement {
  std::string source;  // "engine run", "torchrun", "Open MPI", "SLURM", "PMI"
  std::int64_t world = 1;
  std::int64_t rank = 0;
  std::int64_t local_rank = 0;  // among the processes of this host
  std::int64_t local_size = 1;
  // The number of cores that the job has on this host, where the launcher may have bound each rank to some of them. 0: the launcher
  // does not say, so it is all that the machine has; nullopt: the launcher binds no rank.
  std::optional<std::int64_t> bound_within = {};
  Endpoint coordinator;        // where rank 0 listens
  std::string token;           // what tells the processes of this run from others
  int listener = -1;           // of rank 0: the socket that listens there already, opened by our supervisor
  int memory = -1;             // a file of this rank's that outlives it, made by our supervisor
  int copies_port = 0;         // where our supervisor keeps copies of other hosts' ranks; 0: it keeps none
  std::string copies_at = {};  // where hosts keep copies of states, with commas between
  bool from_disk = false;      // the run goes on from the disk, whatever is in memory
  bool is_restart = false;     // the ranks of an attempt before this one may not all be gone
  int next_place = -1;         // where our supervisor is asked for a place in another attempt (next_place.h)
  int parent = 0;              // process id of a launcher that stays as long as its ranks; 0: there is none
  bool guessed_host = false;  // the coordinator's host is a name that nobody gave, for ranks on several hosts
};

// The value of a variable; nullopt where it is not set. A parameter, so that tests need no real environment.
using Lookup = std::function<std::optional<std::string>(const std::string&)>;
Lookup ProcessEnvironment();

// nullopt: no launcher, this process is alone. The first of these that is there decides:
//   engine run   ENGINE_RANK, ENGINE_WORLD_SIZE, ENGINE_LOCAL_RANK, ENGINE_LOCAL_SIZE, ENGINE_COORDINATOR,
//                ENGINE_TOKEN, ENGINE_LISTENER, ENGINE_MEMORY, ENGINE_COPIES, ENGINE_FROM_DISK,
//                ENGINE_RESTART, ENGINE_NEXT_PLACE: what our supervisor sets
//   torchrun     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; PyTorchJob sets
//                the same. Where torchrun's agent listens on MASTER_PORT, the next port is taken
//   Open MPI     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; rank 0 is found by MASTER_ADDR and
//                MASTER_PORT, or is on this host where all ranks are. Before SLURM, since mpirun starts its
//                own daemons by srun
//   SLURM        SLURM_PROCID, SLURM_NTASKS (more than 1: a shell of one task is no launcher), SLURM_LOCALID,
//                SLURM_STEP_NODELIST (its first host is rank 0's), SLURM_JOB_ID (from which the port follows),
//                SLURM_CPUS_ON_NODE
//   PMI          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS, of MPICH's mpiexec and those made of
//   it;
//                rank 0 is found as Open MPI's
//   PMIx alone   refused: PMIX_RANK comes without the number of ranks
// ENGINE_COORDINATOR and ENGINE_TOKEN replace what the others give. Without ENGINE_TOKEN the token follows
// from the job's id and the user: enough against accidents, not against somebody who wants in. Errors name
// the variable.
absl::StatusOr<std::optional<Placement>> FindPlacement(const Lookup& lookup);

// The place of this process among those that start ranks, one on each host of a run.
struct NodePlace {
  std::string source;                      // "PET_*", "LeaderWorkerSet", "SkyPilot", "indexed Job"
  std::optional<std::int64_t> nodes = {};  // an indexed Job's pods are not told
  std::int64_t node_rank = 0;
  std::optional<Endpoint> coordinator = {};  // where node 0 listens; its name may take a while to be known
  std::optional<std::int64_t> ranks_per_node = {};
  // Follows from source, coordinator and user: enough against accidents, not against somebody who wants in.
  std::string token = {};
};

// nullopt: nothing says that this process has such a place. The first of these that is there decides:
//   PET_*            PET_NNODES, PET_NODE_RANK and, where it is a number, PET_NPROC_PER_NODE; PET_MASTER_ADDR and PET_MASTER_PORT, or
//                    MASTER_ADDR and MASTER_PORT. Kubeflow's TrainJob and PyTorchJob set them, for a torchrun in each pod; of the ranks
//                    that a launcher has started they say nothing. PyTorchJob sets RANK and WORLD_SIZE as
//                    well, which then count pods
//   LeaderWorkerSet  LWS_GROUP_SIZE, LWS_WORKER_INDEX, LWS_LEADER_ADDRESS, with port 29500
//   SkyPilot         SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS (one a line, node 0's first), with port 29500
//   indexed Job      JOB_COMPLETION_INDEX: of JobSets too
// ENGINE_COORDINATOR replaces what they give. Errors name the variable.
absl::StatusOr<std::optional<NodePlace>> FindNode(const Lookup& lookup);

// A token travels in the environment of ranks, and never over the network (handshake.h). CheckToken fails
// where it is not one line of printable ASCII, or is too long; the error names `where` it was given.
absl::Status CheckToken(const std::string& where, const std::string& token);

// First host of a SLURM list: "rack[03-05,9]n[1-2],other" → "rack03n1".
std::string FirstHost(const std::string& list);

}  // namespace engine::launch

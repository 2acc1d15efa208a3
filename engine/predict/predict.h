// What an iteration of a plan takes on a cluster: the program played over streams and links, without a
// device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::predict {

// Of one stage, seconds of an iteration. compute + exposed + bubble + update = the prediction's iteration_s.
struct StageTime {
  double compute_s = 0;   // kernels of the passes, on the computation stream
  double exchange_s = 0;  // collectives of the passes and the update, hidden or not
  double exposed_s = 0;   // of these, what computation waits for
  double transfer_s = 0;  // sends and receives of the pipeline, hidden or not
  double bubble_s = 0;    // waits for other stages
  double update_s = 0;    // kernels of the update
};

// Seconds of an iteration.
struct PassTimes {
  double forward_s = 0;   // kernels of forward passes, and of what an iteration begins with
  double backward_s = 0;  // of backward and weights passes; what is recomputed is among them
  double total_s() const { return forward_s + backward_s; }
};

// Of one rank of a stage, what a component of the model takes (graph::Component), with all that lies within it.
struct ComponentUse : PassTimes {
  std::string name;          // "attention"; of layers of a stack that are alike, the stack's
  std::string variant = {};  // graph::Component::variant
  std::int64_t layers = 0;   // that it stands for; 0: it is no layer
  std::int64_t parameters =
      0;  // elements, at the component that reads them first, on the stage that owns them
  // That forward passes keep for backward passes, of all microbatches that are under way at once.
  std::int64_t saved_bytes = 0;
  std::vector<ComponentUse> within = {};  // in order of execution
};

// The kernels of a stage's passes: the uses and `other` are StageTime::compute_s together.
struct StageComponents {
  std::vector<ComponentUse> uses;  // in order of execution
  PassTimes other;                 // of kernels that belong to no component: copies, sums of gradients
};

// Kernels that the device carries out slowly, of one kind, of an iteration, on the stage where such kernels
// take longest.
struct SlowTime {
  plan::SlowPath::Kind kind = plan::SlowPath::Kind::kNone;
  std::string_view why;
  double seconds = 0;
  double fast_s = 0;  // what fast kernels would take for as much work
};
// "runs in reference kernels", behind what does.
const char* Text(plan::SlowPath::Kind kind);

struct Prediction {
  double iteration_s = 0;   // 0: the program does not come to its end, as the verifier says
  double tokens_per_s = 0;  // of all ranks
  // Model FLOPs utilisation: FLOPs of the model (forward and backward passes without recomputation; attention
  // counts causal pairs once) over iteration_s × ranks × the device's peak of dense 16-bit products. 0: peak
  // unknown.
  double mfu = 0;
  double model_flops = 0;  // of an iteration, all ranks
  double bubble = 0;       // share of the iteration that the mean stage waits for others
  double exposed = 0;      // share of the iteration that the slowest stage's computation waits for exchange
  std::vector<StageTime> stages;
  std::vector<StageComponents> components = {};  // of each stage; empty where iteration_s is 0
  // Whether the cluster's rates were all known; else times are relative and `missing` names the keys of
  // [cluster].
  std::vector<std::string> missing;
  // What the time rests on beside fast kernels, most seconds first, and the iteration's time with fast ones
  // instead; empty and iteration_s: nothing.
  std::vector<SlowTime> slow = {};
  double fast_iteration_s = 0;

  // Whether iteration_s, tokens_per_s and all other times and shares are of this cluster.
  bool has_times() const { return missing.empty() && iteration_s > 0; }
  // The stage whose kernels take longest.
  std::size_t SlowestStage() const;
};

// A kernel, an exchange or a transfer, as played or as measured.
struct PlayedEvent {
  enum class Part : std::uint8_t {
    kRun,   // the kernel, the exchange or the transfer itself
    kWait,  // computation waits for the exchange
    kSum,   // what a pushed sum leaves to compute
  };
  std::int32_t stage = 0;
  std::int32_t stream = 0;  // plan::Stream
  double begin_s = 0, end_s = 0;
  const plan::Segment* segment = nullptr;          // null of a transfer
  const plan::Instruction* instruction = nullptr;  // null of a transfer, and of a wait for several exchanges
  std::int32_t microbatch = -1;
  Part part = Part::kRun;
};

// Plays one training iteration of the whole global batch. `events`: all of it, in order of their beginning, where not null.
Prediction Predict(const plan::Plan& plan, const recipe::Cluster& cluster,
                   std::vector<PlayedEvent>* events = nullptr);

// Seconds of one run of a program (Plan::programs); 0: it does not come to its end.
double PredictProgram(const plan::Plan& plan, std::int32_t program, const recipe::Cluster& cluster);

// Of one global batch of evaluation.
double PredictEvaluation(const plan::Plan& plan, const recipe::Cluster& cluster);

// The copy of the state from which a checkpoint is written beside training (plan/snapshot.h), of the rank that has most.
struct SnapshotPrediction {
  std::int64_t bytes = 0;  // of its host's memory
  double copy_s = 0;       // for which the next iteration's update waits where it is longer than its passes
};
SnapshotPrediction PredictSnapshot(const plan::Plan& plan, const recipe::Cluster& cluster);

// Copies of the whole state in the host's memory (checkpoint.memory), of the rank that has most.
struct MemoryCheckpointPrediction {
  std::int64_t bytes =
      0;  // of its host's memory: two copies, and two of another host's rank where hosts keep these for each other
  std::int64_t sent_bytes =
      0;  // to another host, of each copy; 0: all ranks of this cluster are on one host, or another one has the state
  std::int64_t interval =
      1;  // iterations: checkpoint.memory_interval; where that is 0, the least by which training is slower by 1 % at most
  double slower = 0;  // share of the time of training; 0 where times are not known
};
MemoryCheckpointPrediction PredictMemoryCheckpoint(const plan::Plan& plan, const recipe::Recipe& recipe);

}  // namespace engine::predict

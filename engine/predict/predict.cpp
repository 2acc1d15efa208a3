#include "engine/predict/predict.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/plan/snapshot.h"
#include "engine/predict/components.h"
#include "engine/predict/cost.h"
#include "engine/predict/play.h"

namespace engine::predict {
namespace {

// Calls visit(instruction, runs) for each instruction of the stage's forward, backward and weights passes.
// `runs`: how often it runs in an iteration.
template <typename Visit>
void ForEachPass(const plan::Plan& plan, const plan::StagePlan& stage, const Visit& visit) {
  for (const plan::Chunk& chunk : stage.chunks) {
    for (const std::int32_t segment :
         {chunk.train().forward, chunk.train().backward, chunk.train().weights}) {
      if (segment < 0) continue;
      const plan::Segment& pass = stage.segments[static_cast<size_t>(segment)];
      for (const plan::Instruction& i : pass.instructions)
        visit(i, static_cast<double>(plan.microbatches) / (pass.halves ? 2 : 1));
    }
  }
}

std::vector<SlowTime> SlowTimes(const plan::Plan& plan, const CostModel& costs, const CostModel& fast) {
  std::vector<SlowTime> most;
  double most_s = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    std::map<std::string_view, SlowTime> of;
    double all_s = 0;
    ForEachPass(plan, stage, [&](const plan::Instruction& i, double runs) {
      if (i.slow().kind == plan::SlowPath::Kind::kNone) return;
      SlowTime& time = of[i.slow().why];
      time.kind = i.slow().kind;
      time.why = i.slow().why;
      time.seconds += runs * costs.Seconds(i);
      time.fast_s += runs * fast.Seconds(i);
      all_s += runs * costs.Seconds(i);
    });
    if (all_s <= most_s) continue;
    most_s = all_s;
    most.clear();
    for (const auto& [why, time] : of) most.push_back(time);
  }
  std::sort(most.begin(), most.end(),
            [](const SlowTime& a, const SlowTime& b) { return a.seconds > b.seconds; });
  return most;
}

// FLOPs of products and attention of the forward passes, three times: a backward pass has two products for
// each. Head and loss in one are made with both their gradients, wherever they are.
double ModelFlops(const plan::Plan& plan) {
  double flops = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Chunk& chunk : stage.chunks) {
      for (const std::int32_t segment : {chunk.train().forward, chunk.train().backward}) {
        if (segment < 0) continue;
        const plan::Segment& pass = stage.segments[static_cast<size_t>(segment)];
        const double halves = pass.halves ? 2 : 1;
        for (const plan::Instruction& i : pass.instructions) {
          if (i.family() == graph::Family::kHead) {
            flops += i.work().product_flops / halves;
          } else if (segment == chunk.train().forward) {
            flops += 3 * i.work().product_flops / halves;
          }
        }
      }
    }
  }
  return flops * static_cast<double>(plan.microbatches * plan.mesh.ranks_per_stage());
}

}  // namespace

Prediction Predict(const plan::Plan& plan, const recipe::Cluster& cluster, std::vector<PlayedEvent>* events) {
  const std::int32_t program = plan.ProgramOf(plan::kTrainForm);
  const CostModel costs(plan, cluster);
  Prediction prediction;
  Played played = Play({.plan = plan, .costs = costs, .program = program, .events = events});
  prediction.iteration_s = played.end_s;
  prediction.stages = std::move(played.stages);
  for (size_t s = 0; s < played.by_component.size(); ++s)
    prediction.components.push_back(UsesOf(plan, plan.stages[s], played.by_component[s]));
  prediction.missing = costs.Missing();
  prediction.fast_iteration_s = prediction.iteration_s;
  const CostModel fast(plan, cluster, CostModel::Kernels::kFast);
  prediction.slow = SlowTimes(plan, costs, fast);
  if (!prediction.slow.empty())
    prediction.fast_iteration_s = Play({.plan = plan, .costs = fast, .program = program}).end_s;
  prediction.model_flops = ModelFlops(plan);
  if (prediction.iteration_s <= 0) return prediction;
  const double ranks = static_cast<double>(plan.mesh.world());
  prediction.tokens_per_s = static_cast<double>(plan.global_batch * plan.sequence) / prediction.iteration_s;
  if (cluster.peak_flops > 0) {
    prediction.mfu = prediction.model_flops / (prediction.iteration_s * ranks * cluster.peak_flops);
  }
  for (const StageTime& stage : prediction.stages) {
    prediction.bubble +=
        stage.bubble_s / prediction.iteration_s / static_cast<double>(prediction.stages.size());
  }
  prediction.exposed = prediction.stages[prediction.SlowestStage()].exposed_s / prediction.iteration_s;
  if (events != nullptr) {
    std::stable_sort(events->begin(), events->end(),
                     [](const PlayedEvent& a, const PlayedEvent& b) { return a.begin_s < b.begin_s; });
  }
  return prediction;
}

std::size_t Prediction::SlowestStage() const {
  const auto kernels = [](const StageTime& stage) { return stage.compute_s + stage.update_s; };
  const auto slowest =
      std::max_element(stages.begin(), stages.end(),
                       [&](const StageTime& a, const StageTime& b) { return kernels(a) < kernels(b); });
  return static_cast<std::size_t>(slowest - stages.begin());
}

const char* Text(plan::SlowPath::Kind kind) {
  if (kind == plan::SlowPath::Kind::kReference) return "runs in reference kernels";
  return kind == plan::SlowPath::Kind::kMasked ? "computes the pairs that are masked, too" : "is fast";
}

double PredictProgram(const plan::Plan& plan, std::int32_t program, const recipe::Cluster& cluster) {
  const CostModel costs(plan, cluster);
  if (!costs.Missing().empty()) return 0;
  return Play({.plan = plan, .costs = costs, .program = program}).end_s;
}

double PredictEvaluation(const plan::Plan& plan, const recipe::Cluster& cluster) {
  return PredictProgram(plan, plan.ProgramOf(plan::kEvaluateForm), cluster);
}

SnapshotPrediction PredictSnapshot(const plan::Plan& plan, const recipe::Cluster& cluster) {
  const std::int64_t bytes = plan::SnapshotBytes(plan);
  return {.bytes = bytes, .copy_s = CostModel(plan, cluster).HostCopySeconds(bytes)};
}

namespace {

// Whether a rank sends copies of its state to another host.
bool AnyIsSent(const plan::Plan& plan, const recipe::Cluster& cluster) {
  const std::int64_t each = cluster.devices_per_node;
  if (each == 0 || plan.mesh.world() % each != 0) return false;
  for (std::int64_t rank = 0; rank < plan.mesh.world(); ++rank) {
    const std::optional<plan::Keeper> keeper = plan::KeeperOf(plan, rank, each);
    if (keeper && keeper->is_sent) return true;
  }
  return false;
}

}  // namespace

MemoryCheckpointPrediction PredictMemoryCheckpoint(const plan::Plan& plan, const recipe::Recipe& recipe) {
  constexpr double kMost = 0.01;
  constexpr double kBoundary_s = 4e-3;  // of GPUs, which then have nothing to do ahead: docs/performance.md
  const std::int64_t state = plan::StateBytes(plan);
  const bool is_sent = recipe.checkpoint.memory_partner && AnyIsSent(plan, recipe.cluster);
  MemoryCheckpointPrediction found{.bytes = (is_sent ? 4 : 2) * state,
                                   .sent_bytes = is_sent ? state : 0,
                                   .interval = std::max<std::int64_t>(1, recipe.checkpoint.memory_interval)};
  const Prediction prediction = Predict(plan, recipe.cluster);
  if (!prediction.has_times()) {
    constexpr std::int64_t kUnknown = 10;
    if (recipe.checkpoint.memory_interval == 0) found.interval = kUnknown;
    return found;
  }
  const double copy_s = CostModel(plan, recipe.cluster).HostCopySeconds(state);
  double update_s = 0;
  for (const StageTime& stage : prediction.stages) update_s = std::max(update_s, stage.update_s);
  // On the CPU the same cores copy and compute. On GPUs the next update waits for what its passes do not hide.
  const double cost_s = recipe.cluster.device == "cpu"
                            ? copy_s
                            : kBoundary_s + std::max(0.0, copy_s - (prediction.iteration_s - update_s));
  // A copy is on its way until the next one is due, or training waits for it.
  const double way_s = copy_s + CostModel(plan, recipe.cluster).LinkSeconds(found.sent_bytes);
  if (recipe.checkpoint.memory_interval == 0)
    found.interval =
        static_cast<std::int64_t>(std::max({1.0, std::ceil(cost_s / (kMost * prediction.iteration_s)),
                                            std::ceil(way_s / prediction.iteration_s)}));
  found.slower = cost_s / (static_cast<double>(found.interval) * prediction.iteration_s);
  return found;
}

}  // namespace engine::predict

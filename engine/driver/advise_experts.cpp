// Warnings of experts: how many rows their products have, and what uneven loads cost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/driver/advise_subject.h"
#include "engine/graph/rows.h"
#include "engine/ops/ops.h"
#include "engine/predict/experts.h"

namespace engine::driver {
namespace {

// Products of experts work in blocks of rows, those of one expert after another's.
void ExpertsFillTiles(const AdviceSubject& s) {
  const predict::ExpertUse use = predict::ExpertsOf(s.plan);
  if (!s.on_gpu() || use.experts == 0) return;
  const double rows = use.rows_of_expert();
  if (rows >= static_cast<double>(graph::kRowAlignment)) return;
  s.report.Warn(
      "W212", {"training.micro_batch", "data.sequence_length", "parallelism.ep"},
      fmt::format("an expert has {:.0f} rows of a microbatch in the mean, and products work in blocks of {}: "
                  "{:.0f} % "
                  "of a block is empty",
                  rows, graph::kRowAlignment, 100 * (1 - rows / static_cast<double>(graph::kRowAlignment))),
      use.ranks < use.experts && s.recipe.parallelism.dp > 1
          ? "a larger micro_batch; or more ep in the place of dp, which brings its ranks' tokens together"
          : "a larger micro_batch");
}

// The routers that nothing balances: neither a loss nor a correction of their scores.
std::vector<Saying> UnbalancedRouters(const ModelSteps& steps) {
  std::vector<Saying> routers;
  const std::vector<graph::Node>& nodes = steps.graph().nodes();
  const auto has_loss = [&](graph::ValueId logits) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const graph::Node& node) {
      return node.op == &ops::kBalanceLoss && !node.inputs.empty() && node.inputs[0] == logits;
    });
  };
  for (graph::NodeId i = 0; i < std::ssize(nodes); ++i) {
    const graph::Node& node = steps.node(i);
    if (node.op != &ops::kRoute || node.inputs.size() > 1 || has_loss(node.inputs[0])) continue;
    routers.push_back({i, "aux_loss"});
  }
  return steps.OnePerPlace(std::move(routers));
}

void LoadsAreBalanced(const AdviceSubject& s) {
  constexpr double kMuch = 1.1;
  const predict::ExpertUse use = predict::ExpertsOf(s.plan);
  if (use.experts == 0 || use.ranks == 1 || !s.has_times()) return;
  const std::vector<Saying> routers = UnbalancedRouters(s.steps);
  if (routers.empty()) return;
  const auto times = [&](double load) {
    return predict::PredictAtLoad(s.plan, s.recipe.cluster, load) / s.time.iteration_s;
  };
  const double zipf = times(predict::FullestRank(use, predict::kZipf));
  if (zipf < kMuch) return;
  s.steps.Warn("W213", routers.front(), {.behind = {"parallelism.ep"}},
               fmt::format("nothing balances the experts of {}, which {} ranks share: where they are chosen "
                           "as Zipf's law has it (exponent "
                           "{}), an iteration takes {:.2f} times as long, at the worst {:.2f} times",
                           s.steps.node(routers.front().node).name, use.ranks, predict::kZipf, zipf,
                           times(predict::FullestRankAtWorst(use))),
               "aux_loss = 0.01, or a bias_rate with score = \"sigmoid\"", s.report);
}

void RowsAreFew(const AdviceSubject& s) {
  constexpr double kMuchRoom = 1.9, kShare = 0.25;
  const predict::ExpertUse use = predict::ExpertsOf(s.plan);
  const std::int64_t device = s.recipe.cluster.memory_bytes;
  if (use.experts == 0 || device == 0) return;
  const double room = static_cast<double>(use.row_bound) / use.mean_rows;
  std::int64_t bytes = 0;
  for (const predict::StageExperts& stage : use.stages)
    bytes = std::max(bytes, stage.saved_bytes + stage.other_bytes);
  if (room < kMuchRoom || static_cast<double>(bytes) < kShare * static_cast<double>(device)) return;
  s.report.Warn(
      "W214", {"parallelism.ep", "training.micro_batch", "recompute.granularity"},
      fmt::format(
          "rows of experts take {} of a device's {}: there is room for the worst load, {:.1f} times the mean",
          FormatBytes(bytes), FormatBytes(device), room),
      s.recipe.recompute.granularity == "full"
          ? "a smaller micro_batch, or less ep"
          : "recompute.granularity = \"full\", which keeps one layer's rows at a "
            "time; a smaller micro_batch, or less ep");
}

constexpr Advice kExpertAdvice[] = {ExpertsFillTiles, LoadsAreBalanced, RowsAreFew};

}  // namespace

std::span<const Advice> ExpertAdvice() { return kExpertAdvice; }

}  // namespace engine::driver

#include "engine/train/evaluation.h"

#include <functional>
#include <vector>

#include "engine/train/feed.h"
#include "engine/train/records.h"

namespace engine::train {

bool EvaluationDue(const recipe::Recipe& recipe, std::int64_t iteration) {
  const std::int64_t interval = recipe.evaluation.interval;
  return interval > 0 && (iteration % interval == 0 || iteration == recipe.iterations());
}

absl::Status Evaluate(const RunContext& run, std::int64_t iteration) {
  const auto start = Clock::now();
  const std::int64_t batches = run.recipe.evaluation.iterations;
  // The n-th evaluation of a run has samples of its own; so a resumed run evaluates on the same ones.
  const std::int64_t nth = (iteration - 1) / run.recipe.evaluation.interval;
  const MeanOver all_batches = {.first = nth * batches * run.plan.global_batch,
                                .count = batches * run.plan.global_batch};
  std::function<absl::StatusOr<double>()> label_factor;
  std::vector<double> all(static_cast<size_t>(run.plan.numbers()), 0);
  for (std::int64_t b = 0; b < batches; ++b) {
    const std::int64_t first = (nth * batches + b) * run.plan.global_batch;
    executor::Feed feed = MakeFeed(run.plan, *run.source, data::Split::kValid, first, all_batches);
    if (b == 0) label_factor = feed.label_factor;
    feed.label_factor = label_factor;  // of all batches, so it is found once
    std::vector<std::vector<double>> sums(run.ranks->executors().size());
    RETURN_IF_ERROR(run.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
      const absl::StatusOr<executor::IterationResult> result = rank.Evaluate(feed);
      if (!result.ok()) {
        return run.OnDevice(result.status(), fmt::format("evaluation after iteration {}", iteration), rank);
      }
      sums[run.IndexOf(rank)] = result->sums;
      return absl::OkStatus();
    }));
    for (size_t m = 0; m < all.size(); ++m) all[m] += sums[0][m];
  }
  if (run.reporter == nullptr) return absl::OkStatus();
  run.reporter->Evaluation({.iteration = iteration,
                            .validation_loss = run.plan.Objective(all, all_batches.count),
                            .metrics = MetricsOf(run.plan, all, all_batches.count),
                            .elapsed_ms = MillisecondsSince(start)});
  return absl::OkStatus();
}

}  // namespace engine::train

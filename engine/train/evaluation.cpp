#include "engine/train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/driver/run_folder.h"
#include "engine/evaluate/results.h"
#include "engine/evaluate/score_rows.h"
#include "engine/evaluate/task.h"
#include "engine/recipe/print.h"
#include "engine/train/feed.h"
#include "engine/train/records.h"

namespace engine::train {

bool EvaluationDue(const recipe::Recipe& recipe, std::int64_t iteration) {
  const std::int64_t interval = recipe.evaluation.interval;
  return interval > 0 && (iteration % interval == 0 || iteration == recipe.iterations());
}

absl::StatusOr<std::vector<evaluate::Task>> TasksOf(const recipe::Recipe& recipe) {
  if (recipe.evaluation.tasks.empty()) return std::vector<evaluate::Task>();
  constexpr const char* kKey = "evaluation.tasks";
  const std::string said_by = fmt::format("{} ({})", kKey, recipe::OriginOf(recipe, kKey));
  return evaluate::MakeTasks(recipe.evaluation.tasks, said_by, recipe, /*limit=*/0);
}

std::optional<Diagnostic> CheckTasks(const recipe::Recipe& recipe) {
  std::vector<std::string> tasks = recipe.evaluation.tasks;
  if (tasks.empty()) return std::nullopt;
  std::erase_if(tasks, [](const std::string& task) { return task.ends_with(".toml"); });
  absl::Status status = evaluate::ReadTasks(tasks).status();
  if (status.ok() && recipe.data.tokenizer.kind == "none")
    status = InvalidArgument("tasks are texts, and there is no tokenizer (data.tokenizer.kind)");
  if (status.ok()) return std::nullopt;
  Diagnostic error{.severity = Severity::kError,
                   .span = {recipe.path, 0, 0, 1},
                   .message = Message(status),
                   .hint = "",
                   .source_line = ""};
  error.code = "E206";
  if (const auto found = recipe.provenance.find("evaluation.tasks"); found != recipe.provenance.end()) {
    error.span = found->second.span;
    error.source_line = found->second.source_line;
  }
  return error;
}

namespace {

absl::StatusOr<std::vector<evaluate::TaskResult>> AskTasks(const RunContext& run, std::int64_t iteration) {
  std::vector<evaluate::TaskResult> results;
  for (const evaluate::Task& task : run.tasks) {
    const std::string work = fmt::format("task {} after iteration {}", task.settings.name, iteration);
    const evaluate::Scorer scorer{.plan = run.plan,
                                  .ranks = *run.ranks,
                                  .processes = run.processes,
                                  .rank = run.device.rank.value_or(0),
                                  .explain = [&](const absl::Status& status, executor::RankExecutor& rank) {
                                    return run.OnDevice(status, work, rank);
                                  }};
    const std::string key = fmt::format("{} {}", iteration, task.settings.name);
    absl::StatusOr<std::vector<evaluate::RowScore>> scores = evaluate::ScoreRows(scorer, task.rows, key);
    if (!scores.ok()) return scores.status();
    if (run.Leads()) results.push_back(evaluate::Summarize(task, *scores));
  }
  return results;
}

// A disk that fails ends no run.
void KeepDeviations(const RunContext& run, std::int64_t iteration,
                    const std::vector<evaluate::TaskResult>& tasks) {
  const std::filesystem::path path = std::filesystem::path(run.options.out) / driver::kDeviationsName;
  const absl::Status status = WriteFile(path, evaluate::DeviationsText(iteration, tasks));
  if (!status.ok()) run.reporter->Warn(fmt::format("{}: the run goes on without this file", Message(status)));
}

// The mean cross entropy of the next tokens, nats per token: the first loss of labels, without what routers and further losses add to the
// objective. Nothing where that loss has terms of its own (label smoothing, z-loss), of which the sum is not known apart.
std::optional<double> TokenLoss(const plan::Plan& plan, const std::vector<double>& sums,
                                std::int64_t samples) {
  const auto of_labels = std::find_if(plan.metrics.begin(), plan.metrics.end(),
                                      [](const plan::PlanMetric& metric) { return metric.of_labels; });
  if (of_labels == plan.metrics.end() || of_labels->has_terms) return std::nullopt;
  return plan.MeanOf(static_cast<size_t>(of_labels - plan.metrics.begin()),
                     sums[static_cast<size_t>(of_labels->first)], samples);
}

}  // namespace

absl::Status Evaluate(const RunContext& run, std::int64_t iteration) {
  const auto start = Clock::now();
  const std::int64_t batches = run.recipe.evaluation.iterations;
  // The n-th evaluation of a run has samples of its own; so a resumed run evaluates on the same ones.
  const std::int64_t nth = (iteration - 1) / run.recipe.evaluation.interval;
  const Samples all_batches = {.first = nth * batches * run.plan.global_batch,
                               .count = batches * run.plan.global_batch};
  std::function<absl::StatusOr<double>()> label_factor;
  std::vector<double> all(static_cast<size_t>(run.plan.numbers()), 0);
  for (std::int64_t b = 0; b < batches; ++b) {
    const std::int64_t first = (nth * batches + b) * run.plan.global_batch;
    executor::Feed feed =
        MakeFeed(run.plan, *run.source, data::Split::kValid, {first, run.plan.global_batch}, all_batches);
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
  ASSIGN_OR_RETURN(std::vector<evaluate::TaskResult> tasks, AskTasks(run, iteration));
  if (run.reporter == nullptr) return absl::OkStatus();
  if (!tasks.empty()) KeepDeviations(run, iteration, tasks);
  run.reporter->Evaluation({.iteration = iteration,
                            .validation_loss = run.plan.Objective(all, all_batches.count),
                            .token_loss = TokenLoss(run.plan, all, all_batches.count),
                            .metrics = MetricsOf(run.plan, all, all_batches.count),
                            .elapsed_ms = MillisecondsSince(start),
                            .tasks = std::move(tasks)});
  return absl::OkStatus();
}

}  // namespace engine::train

#include "engine/train/iterations.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/base/print.h"
#include "engine/recipe/batch_size.h"
#include "engine/recipe/learning_rate.h"
#include "engine/train/check_copies.h"
#include "engine/train/evaluation.h"
#include "engine/train/feed.h"
#include "engine/train/histograms.h"
#include "engine/train/hta_trace.h"
#include "engine/train/records.h"
#include "engine/train/save.h"

namespace engine::train {
namespace {

// The iterations that the device works on.
std::string IterationsText(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("iteration {}", last) : fmt::format("iteration {} or {}", first, last);
}

}  // namespace

Iterations::Iterations(const RunContext& run, StopSignals& stop, const Position& position, Rerun* rerun)
    : run_(run),
      stop_(stop),
      rerun_(rerun),
      position_(position),
      first_iteration_(position.iteration),
      left_out_(LeftOutBy(run.recipe.guard)),
      log_(run) {
  left_out_.insert(left_out_.end(), position.guard.left_out.begin(), position.guard.left_out.end());
  for (std::int64_t iteration = 1; !left_out_.empty() && iteration <= position.iteration; ++iteration)
    left_out_count_ += IsLeftOut(iteration) ? 1 : 0;
}

bool Iterations::IsLeftOut(std::int64_t iteration) const { return recipe::AnyHas(left_out_, iteration); }

void Iterations::LeaveOut() {
  position_.consumed_samples += BatchAt(position_.consumed_samples);
  ++position_.iteration;
  ++left_out_count_;
  if (position_.iteration > told_left_out_) {
    recipe::IterationRange range{position_.iteration, position_.iteration};
    while (range.last < run_.recipe.iterations() && IsLeftOut(range.last + 1)) ++range.last;
    run_.Say(fmt::format("{} {} left out", recipe::ToText(range), range.count() == 1 ? "is" : "are"));
    told_left_out_ = range.last;
  }
  if (run_.reporter != nullptr)
    run_.reporter->LeftOut({position_.iteration, position_.consumed_samples, left_out_count_});
}

executor::Feed Iterations::FeedOf(std::int64_t first_sample) const {
  const Samples batch = {.first = first_sample, .count = BatchAt(first_sample)};
  return MakeFeed(run_.plan, *run_.source, data::Split::kTrain, batch, batch);
}

std::int64_t Iterations::BatchAt(std::int64_t consumed) const {
  return recipe::BatchAt(run_.recipe.training, consumed);
}

std::int32_t Iterations::ProgramAt(std::int64_t consumed) const {
  return run_.plan.ProgramOf(plan::kTrainForm, BatchAt(consumed));
}

executor::LearningRates Iterations::Rates() const {
  ENGINE_CHECK(started_.size() <= 1, "rates for one iteration under way, not for {}", started_.size());
  const std::int64_t under_way = started_.empty() ? 0 : started_.front().global_batch;
  return {position_.optimizer_steps, recipe::LearningRate(run_.recipe, position_.schedule_samples),
          recipe::LearningRate(run_.recipe, position_.schedule_samples + under_way)};
}

absl::Status Iterations::TrainOnce() {
  if (IsLeftOut(position_.iteration + 1)) {
    // What is told of iterations comes in their order.
    RETURN_IF_ERROR(FinishAll());
    if (!bad_) LeaveOut();
    return absl::OkStatus();
  }
  stop_.Begin(position_.iteration + 1);
  const executor::LearningRates rates = Rates();
  const executor::Feed feed = FeedOf(position_.consumed_samples);
  const std::int64_t batch = BatchAt(position_.consumed_samples);
  const std::int32_t program = ProgramAt(position_.consumed_samples);
  const std::int64_t next_samples = position_.consumed_samples + batch;
  const bool more = position_.iteration + 1 < run_.recipe.iterations() && !IsLeftOut(position_.iteration + 2);
  const bool beside = run_.ranks->executors()[0]->backend().asynchronous();  // as every rank's
  const bool profiled = ProfilesNow();
  if (profiled) {
    for (const auto& rank : run_.ranks->executors()) profile_.try_emplace(rank->rank());
  }
  const std::string work = IterationsText(
      started_.empty() ? position_.iteration + 1 : started_.front().iteration, position_.iteration + 1);
  RETURN_IF_ERROR(run_.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    if (profiled) {
      absl::StatusOr<Timings> timings = rank.Profile(position_.iteration, rates, feed, program);
      if (!timings.ok()) return run_.OnDevice(timings.status(), work, rank);
      profile_.at(rank.rank()).push_back(*std::move(timings));
    } else if (const absl::Status status = rank.Launch(position_.iteration, rates, feed, program);
               !status.ok()) {
      return run_.OnDevice(status, work, rank);
    }
    if (!beside) return absl::OkStatus();
    // An evaluation in between reads its inputs into the same memory.
    if (more && !EvaluationDue(run_.recipe, position_.iteration + 1))
      rank.Prefetch(FeedOf(next_samples), ProgramAt(next_samples));
    return absl::OkStatus();
  }));
  ++position_.iteration;
  position_.consumed_samples = next_samples;
  started_.push_back({position_.iteration, position_.consumed_samples, batch});
  const bool wait_for_all =
      !beside || !more || profiled || ProfilesNow() || EvaluationDue(run_.recipe, position_.iteration) ||
      CheckpointDue(run_.recipe, position_.iteration) ||
      CopiesAreCompared(run_.recipe, position_.iteration) ||
      HistogramsDue(run_.recipe, position_.iteration) || run_.IsKept(position_.iteration);
  while (started_.size() > (wait_for_all ? 0U : 1U)) RETURN_IF_ERROR(Finish());
  return absl::OkStatus();
}

absl::Status Iterations::FinishAll() {
  while (!started_.empty()) RETURN_IF_ERROR(Finish());
  return log_.Flush();
}

absl::Status Iterations::Abandon() {
  for (; !started_.empty(); started_.pop_front()) {
    RETURN_IF_ERROR(
        run_.ranks->Run([](executor::RankExecutor& rank) -> absl::Status { return rank.Wait().status(); }));
  }
  return absl::OkStatus();
}

absl::Status Iterations::WriteProfiles() const {
  if (profile_.empty()) return absl::OkStatus();
  const std::vector<predict::PlayedEvent> predicted = PredictedEvents(run_.plan, run_.recipe.cluster);
  for (const auto& [rank, iterations] : profile_) {
    absl::StatusOr<std::string> table =
        WriteProfile(run_.options.out, run_.plan, rank, iterations, run_.recipe.cluster);
    if (const absl::Status written = WriteHtaTrace(run_.options.out, run_.plan, rank, iterations, predicted);
        table.ok() && !written.ok()) {
      table = written;
    }
    if (rank == 0) {
      RETURN_IF_ERROR(table.status());
      run_.Say(*table + "written to profile.txt, trace.json and traces/ in " + run_.options.out);
    } else if (!table.ok()) {  // its host may not have the folder
      Print(stderr, "note: {}\n", Message(table.status()));
    }
  }
  return absl::OkStatus();
}

bool Iterations::ProfilesNow() const {
  constexpr std::int64_t kWarmUp = 3;
  const std::int64_t of_run = position_.iteration - first_iteration_;
  return of_run >= kWarmUp && of_run < kWarmUp + run_.options.profile;
}

absl::Status Iterations::Finish() {
  RETURN_IF_ERROR(log_.Flush());
  const Started started = started_.front();
  const std::string work = IterationsText(started.iteration, started_.back().iteration);
  started_.pop_front();
  std::vector<executor::IterationResult> results(run_.ranks->executors().size());
  RETURN_IF_ERROR(run_.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    absl::StatusOr<executor::IterationResult> result = rank.Wait();
    if (!result.ok()) return run_.OnDevice(result.status(), work, rank);
    results[run_.IndexOf(rank)] = *result;
    return absl::OkStatus();
  }));
  const executor::IterationResult& result = results[0];  // the same on every rank
  IterationReport report = ReportOf(started, result);
  for (const executor::IterationResult& of_rank : results)
    report.data_wait_ms = std::max(report.data_wait_ms, of_rank.data_wait_ms);
  position_.schedule_samples += (result.steps - position_.optimizer_steps) * started.global_batch;
  position_.optimizer_steps = result.steps;
  if (rerun_ != nullptr) {
    if (run_.recipe.guard.trace) rerun_->TakeTraces(report.iteration, &results);
    if (absl::Status other_bits = rerun_->Take(report); !other_bits.ok()) {
      RETURN_IF_ERROR(Abandon());
      if (run_.recipe.guard.trace)
        other_bits = NameExchange(run_, report.iteration, rerun_->exchanges(), other_bits);
      return run_.OfAll(NameRanks(run_, report.iteration, other_bits));
    }
  }
  doubtful_ = std::isfinite(report.loss) ? 0 : doubtful_ + 1;
  bad_ = Judge(run_.recipe.guard, report, &position_.guard);
  if (bad_) {
    run_.Tell(report);
    return Abandon();
  }
  if (absl::Status end = EndOf(run_.recipe.guard, report, position_.guard); !end.ok()) {
    run_.Tell(report);
    return run_.OfAll(end);
  }
  return log_.Report(std::move(report), results);
}

IterationReport Iterations::ReportOf(const Started& started, const executor::IterationResult& result) const {
  IterationReport report{.iteration = started.iteration,
                         .iterations = run_.recipe.iterations(),
                         .consumed_samples = started.consumed_samples,
                         .global_batch = started.global_batch,
                         .loss = run_.plan.Objective(result.sums, started.global_batch),
                         .metrics = MetricsOf(run_.plan, result.sums, started.global_batch),
                         .grad_norm = result.grad_norm,
                         .learning_rate = result.learning_rate,
                         .elapsed_ms = result.elapsed_ms,
                         .data_wait_ms = result.data_wait_ms,
                         .skipped = result.steps == position_.optimizer_steps,
                         .skipped_iterations = result.skipped,
                         .loss_scale = result.loss_scale};
  report.nan = !std::isfinite(report.loss) || (!report.skipped && !std::isfinite(report.grad_norm));
  report.harmless = report.skipped && run_.recipe.guard.on_nonfinite == "skip";
  return report;
}

}  // namespace engine::train

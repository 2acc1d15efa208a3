#include "engine/train/save.h"

#include <chrono>
#include <utility>

#include "engine/base/attention_draws.h"
#include "engine/base/dropout_draws.h"
#include "engine/base/memory_limit.h"
#include "engine/base/units.h"
#include "engine/base/version.h"
#include "engine/checkpoint/layout.h"
#include "engine/recipe/print.h"
#include "engine/recipe/saving.h"
#include "engine/state/save.h"
#include "engine/state/shard_exchange.h"
#include "engine/state/state.h"
#include "engine/train/bucket.h"
#include "engine/train/bucket_put.h"
#include "engine/train/setup.h"

namespace engine::train {

bool MayPass(const absl::Status& failure) {
  switch (failure.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kNotFound:
      return true;
    default:
      return false;
  }
}

bool CheckpointDue(const recipe::Recipe& recipe, std::int64_t iteration) {
  const std::int64_t interval = recipe.checkpoint.interval;
  return interval > 0 && iteration % interval == 0;
}

absl::StatusOr<Position> LoadState(const RunContext& run, const std::optional<KeptState>& kept,
                                   const std::optional<ResumePoint>& resume,
                                   const std::optional<StartPoint>& start) {
  if (kept) {
    RETURN_IF_ERROR(run.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
      if (kept->other_layout == nullptr) return rank.memory_checkpoint().Restore();
      RETURN_IF_ERROR(rank.SetSteps(kept->position.optimizer_steps));
      return state::LoadCheckpoint(run.plan, kept->other_layout->state(), true, rank);
    }));
    return kept->position;
  }
  Position position;
  if (resume) position = Position::Of(resume->reader.metadata(), run.plan.global_batch);
  RETURN_IF_ERROR(run.ranks->Run([&](executor::RankExecutor& rank) -> absl::Status {
    if (!resume || resume->weights_alone) {
      RETURN_IF_ERROR(state::InitializeParameters(run.plan, run.Seed(), rank));
      if (resume) return state::LoadCheckpoint(run.plan, resume->reader, false, rank);
      if (!start) return absl::OkStatus();
      return state::LoadWeights(run.plan, *start->weights, start->sources, rank);
    }
    RETURN_IF_ERROR(rank.SetSteps(position.optimizer_steps));
    return state::LoadCheckpoint(run.plan, resume->reader, true, rank);
  }));
  return position;
}

Saver::~Saver() {
  if (under_way_) under_way_->ended.wait();
}

absl::Status Saver::Prepare() {
  if (!recipe::SavesBeside(run_.recipe)) return absl::OkStatus();
  const bool on_host = run_.device.profile.name == "cpu";
  std::int64_t bytes = on_host ? ArenasBytes(run_.plan) : 0;
  for (const auto& rank : run_.ranks->executors()) bytes += rank->snapshot().bytes();
  const MemoryLimit limit = MemoryOfProcess();
  if (bytes > limit.bytes) {
    return ResourceExhausted(
        "{}copies of the state, from which checkpoints are written beside training, need {}, but {} {} of "
        "memory\n"
        "    hint: checkpoint.background = false needs no copies, and training waits for checkpoints",
        on_host ? "arenas and " : "", FormatBytes(bytes), limit.source, FormatBytes(limit.bytes));
  }
  return run_.ranks->Run([](executor::RankExecutor& rank) { return rank.snapshot().Reserve(); });
}

checkpoint::Metadata Saver::MetadataAt(const Position& position) const {
  const recipe::Parallelism& p = run_.recipe.parallelism;
  return {.iteration = position.iteration,
          .consumed_samples = position.consumed_samples,
          .seed = run_.recipe.training.seed,
          .optimizer_steps = position.optimizer_steps,
          .schedule_samples = position.schedule_samples,
          .attention_draws = kAttentionDrawsVersion,
          .dropout_draws = kDropoutDrawsVersion,
          .plan_hash = run_.plan.hash,
          .recipe_toml = recipe::ToToml(run_.recipe),
          .engine_version = Version(),
          .mesh = {{"dp", p.dp}, {"tp", p.tp}, {"pp", p.pp}, {"cp", p.cp}, {"ep", p.ep}},
          .fingerprints = run_.fingerprints,
          .guard = position.guard};
}

// How long a bucket takes says nothing about how long it takes the next time, and its requests have time limits of their own.
launch::Work Saver::Work() const { return HasBucket() ? launch::Work::kAlone : launch::Work::kSaving; }

template <typename T>
void Saver::Wait(const std::future<T>& future) {
  run_.Begin(Work(), fmt::format("saving the checkpoint of iteration {}", under_way_->iteration));
  const auto start = Clock::now();
  future.wait();
  stall_ms_ += MillisecondsSince(start);
}

absl::Status Saver::Save(const Position& position) {
  if (under_way_) {
    const std::int64_t before = under_way_->iteration;
    const auto start = Clock::now();
    RETURN_IF_ERROR(Finish());
    constexpr double kWorthTelling = 100;
    if (const double waited = MillisecondsSince(start); waited > kWorthTelling) {
      run_.Say(
          fmt::format("the checkpoint of iteration {} waited {:.1f} s for that of iteration {} to be written",
                      position.iteration, waited / 1e3, before));
    }
  }
  RETURN_IF_ERROR(Begin(position));
  return background() ? absl::OkStatus() : Finish();
}

absl::Status Saver::Begin(const Position& position) {
  const auto start = Clock::now();
  if (!background())
    run_.Begin(Work(), fmt::format("saving the checkpoint of iteration {}", position.iteration));
  RETURN_IF_ERROR(state::BeginSave(*run_.ranks));
  stall_ms_ += MillisecondsSince(start);
  Launch(
      position.iteration, /*is_put_again=*/false,
      [this, start, metadata = MetadataAt(position)](const std::string& key, std::promise<void> in_folder) {
        return Write(metadata, key, start, std::move(in_folder));
      });
  return absl::OkStatus();
}

absl::Status Saver::TryAgain(const Position& position) {
  if (!last_is_in_folder_) {
    RETURN_IF_ERROR(Save(position));
    return Finish();
  }
  Launch(newest_, /*is_put_again=*/true,
         [this, start = Clock::now(), iteration = newest_](const std::string& key,
                                                           std::promise<void>) -> absl::StatusOr<Written> {
           Written written;
           RETURN_IF_ERROR(PutIntoBucketAndPrune(iteration, key, start, &written));
           return written;
         });
  return Finish();
}

// What the system refuses to a thread must not end the process.
void Saver::Launch(std::int64_t iteration, bool is_put_again, WriteIt write) {
  std::promise<void> in_folder;
  std::promise<absl::StatusOr<Written>> written;
  UnderWay under_way{.iteration = iteration,
                     .is_put_again = is_put_again,
                     .in_folder = in_folder.get_future(),
                     .written = written.get_future(),
                     .ended = {}};
  const std::string key = fmt::format("checkpoint {}, of iteration {}", ++saves_, iteration);
  under_way.ended = std::async(
      std::launch::async,
      [this, key, iteration, write = std::move(write), in_folder = std::move(in_folder),
       written = std::move(written)]() mutable -> absl::Status {
        absl::StatusOr<Written> result = state::InMemory([&] { return write(key, std::move(in_folder)); });
        const bool is_whole = result.ok() && result->failure.ok();
        written.set_value(std::move(result));
        if (!is_whole || !run_.Leads()) return absl::OkStatus();
        retention_.Saved(iteration);
        return retention_.Prune();
      });
  under_way_ = std::move(under_way);
}

absl::StatusOr<Saver::Written> Saver::Write(const checkpoint::Metadata& metadata, const std::string& key,
                                            Clock::time_point start, std::promise<void> in_folder) {
  ASSIGN_OR_RETURN(state::Saved saved, state::WriteSaved(run_.plan, CheckpointRoot(run_.options.out),
                                                         metadata, key, *run_.ranks, run_.processes));
  if (!saved.failure.ok()) {
    if (!MayPass(saved.failure)) return saved.failure;
    return Written{.failure = std::move(saved.failure)};
  }
  in_folder.set_value();
  Written written{.elapsed_ms = MillisecondsSince(start)};
  if (HasBucket()) RETURN_IF_ERROR(PutIntoBucketAndPrune(metadata.iteration, key, start, &written));
  return written;
}

absl::Status Saver::PutIntoBucketAndPrune(std::int64_t iteration, const std::string& key,
                                          Clock::time_point start, Written* written) {
  const std::string root = CheckpointRoot(run_.options.out);
  const std::string& bucket = run_.recipe.checkpoint.upload;
  const PutTeam team = run_.TeamFor(key);
  ASSIGN_OR_RETURN(Put put, run_.Leads()
                                ? PutIntoBucket(*run_.claim, root, iteration, &damaged_in_bucket_, team)
                                : HelpToPut(bucket, team));
  written->warnings = std::move(put.reports);
  if (!put.failure.ok()) {
    written->in_bucket =
        WithContext(put.failure, fmt::format("{} is whole, but could not be copied to {}",
                                             checkpoint::IterationPath(root, iteration), bucket));
    return absl::OkStatus();
  }
  written->elapsed_ms = MillisecondsSince(start);
  if (!run_.Leads()) return absl::OkStatus();
  absl::Status pruned =
      PruneBucket(*run_.claim, iteration, run_.recipe.checkpoint.keep, damaged_in_bucket_, root);
  if (absl::IsAlreadyExists(pruned)) return pruned;
  if (!pruned.ok())
    written->warnings.push_back(fmt::format("old checkpoints in {} stay: {}", bucket, Message(pruned)));
  return absl::OkStatus();
}

absl::Status Saver::Tell() {
  absl::StatusOr<Written> written = under_way_->written.get();
  const std::int64_t iteration = under_way_->iteration;
  const auto of_this = [&](const absl::Status& failure) {
    return WithContext(failure, fmt::format("saving the checkpoint of iteration {}", iteration));
  };
  const absl::Status failure = written.ok() ? written->failure : written.status();
  const bool is_required = run_.recipe.checkpoint.required && end_ != iteration;
  if (!written.ok() || (!failure.ok() && is_required)) {
    under_way_->ended.wait();
    under_way_.reset();
    return of_this(failure);
  }
  last_is_in_folder_ = failure.ok();
  if (!failure.ok()) {
    last_ = of_this(failure);
    TellFailure(iteration);
    return absl::OkStatus();
  }
  last_ = written->in_bucket;
  newest_ = iteration;
  last_seconds_ = written->elapsed_ms / 1e3;
  if (run_.reporter == nullptr) return absl::OkStatus();
  for (const std::string& warning : written->warnings) run_.reporter->Warn(warning);
  if (!last_.ok() && under_way_->is_put_again) return absl::OkStatus();
  if (!last_.ok() && end_ != iteration)
    run_.reporter->Warn(fmt::format("{}; it is tried again with the next checkpoint", Message(last_)));
  run_.Say(fmt::format("saved checkpoint of iteration {} to {}", iteration,
                       HasBucket() && last_.ok() ? run_.claim->prefix() : CheckpointRoot(run_.options.out)));
  run_.reporter->Saved(
      {.iteration = iteration, .elapsed_ms = written->elapsed_ms, .stall_ms = std::exchange(stall_ms_, 0)});
  return absl::OkStatus();
}

// All ranks meet a failure, and the one that leads tells it.
void Saver::TellFailure(std::int64_t iteration) {
  ++failures_;
  if (run_.reporter == nullptr) return;
  const std::string newest = newest_ > 0
                                 ? fmt::format("the newest checkpoint is that of iteration {}", newest_)
                                 : "there is no checkpoint";
  if (end_ != iteration)
    run_.reporter->Warn(fmt::format("{}; {}, and training goes on to the next one", Message(last_), newest));
  run_.reporter->NotSaved({.iteration = iteration, .failures = failures_});
}

absl::Status Saver::Poll() {
  const auto is_ready = [](const auto& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  if (!under_way_) return absl::OkStatus();
  if (under_way_->written.valid() && is_ready(under_way_->written)) RETURN_IF_ERROR(Tell());
  if (under_way_->written.valid() || !is_ready(under_way_->ended)) return absl::OkStatus();
  return std::exchange(under_way_, std::nullopt)->ended.get();
}

void Saver::AwaitFolder() {
  if (under_way_) Wait(under_way_->in_folder);
}

absl::Status Saver::Finish() {
  if (!under_way_) return absl::OkStatus();
  if (under_way_->written.valid()) {
    Wait(under_way_->written);
    RETURN_IF_ERROR(Tell());
  }
  Wait(under_way_->ended);
  return Poll();
}

}  // namespace engine::train

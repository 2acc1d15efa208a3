#include "engine/train/save.h"

#include "engine/base/attention_draws.h"
#include "engine/base/dropout_draws.h"
#include "engine/base/version.h"
#include "engine/recipe/print.h"
#include "engine/state/state.h"

namespace engine::train {

bool CheckpointDue(const recipe::Recipe& recipe, std::int64_t iteration) {
  const std::int64_t interval = recipe.checkpoint.interval;
  return interval > 0 && iteration % interval == 0;
}

absl::StatusOr<Position> LoadState(const RunContext& run, const std::optional<ResumePoint>& resume,
                                   const std::optional<StartPoint>& start) {
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

absl::Status Save(const RunContext& run, const Position& position, checkpoint::Retention& retention) {
  const recipe::Parallelism& p = run.recipe.parallelism;
  const checkpoint::Metadata metadata{
      .iteration = position.iteration,
      .consumed_samples = position.consumed_samples,
      .seed = run.recipe.training.seed,
      .optimizer_steps = position.optimizer_steps,
      .schedule_samples = position.schedule_samples,
      .attention_draws = kAttentionDrawsVersion,
      .dropout_draws = kDropoutDrawsVersion,
      .plan_hash = run.plan.hash,
      .recipe_toml = recipe::ToToml(run.recipe),
      .engine_version = Version(),
      .mesh = {{"dp", p.dp}, {"tp", p.tp}, {"pp", p.pp}, {"cp", p.cp}, {"ep", p.ep}},
      .fingerprints = run.fingerprints};
  const std::string root = CheckpointRoot(run.options.out);
  run.Begin(launch::Work::kSaving, fmt::format("saving the checkpoint of iteration {}", position.iteration));
  const auto start = Clock::now();
  RETURN_IF_ERROR(state::SaveCheckpoint(run.plan, root, metadata, *run.ranks, run.processes));
  if (!run.Leads()) return absl::OkStatus();
  run.reporter->Line(fmt::format("saved checkpoint of iteration {} to {}", position.iteration, root));
  // Before the deletion, so that a run that is killed meanwhile has told of the checkpoint that it goes on from.
  run.reporter->Saved({.iteration = position.iteration, .elapsed_ms = MillisecondsSince(start)});
  retention.Saved(position.iteration);
  const auto deletion_start = Clock::now();
  absl::Status pruned = retention.Prune();
  run.reporter->Deleted(MillisecondsSince(deletion_start));
  return pruned;
}

}  // namespace engine::train

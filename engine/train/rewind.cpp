#include "engine/train/rewind.h"

#include <utility>

#include "engine/base/print.h"
#include "engine/train/check_copies.h"
#include "engine/train/memory_checkpoints.h"
#include "engine/train/outcome.h"
#include "engine/train/resume.h"
#include "engine/train/save.h"

namespace engine::train {

Rewinds::Rewinds(RunContext& run, checkpoint::Retention& retention) : run_(run), retention_(retention) {
  if (run.recipe.guard.rerun) rerun_.emplace(run.recipe.checkpoint.interval);
}

absl::StatusOr<Return> Rewinds::GoBack(const Departure& left, bool resumed,
                                       const std::optional<StartPoint>& start) {
  const recipe::Guard& guard = run_.recipe.guard;
  const BadIteration& bad = left.bad;
  const bool again = rerun_ && !rerun_->Confirms(bad.iteration);
  if (!again) RETURN_IF_ERROR(run_.OfAll(MayRewind(left)));
  if (again) {
    // Weights that a machine has spoilt may still be there. Traces tell more than copies: who spoilt them.
    copies_ = NameRanks(run_, bad.iteration, absl::OkStatus());
    if (!guard.trace) RETURN_IF_ERROR(copies_);
  }
  const std::int64_t latest = again ? bad.iteration - 1 : bad.LatestCheckpoint(guard);
  // What this process has not trained itself may have been trained with other settings.
  const std::int64_t every = again ? 0 : run_.recipe.checkpoint.interval;
  ASSIGN_OR_RETURN(Position position, LoadBefore(latest, every, bad, resumed, start));
  position.guard.left_out = left.guard.left_out;
  position.guard.rewinds = left.guard.rewinds;
  std::string text;
  if (again) {
    text = fmt::format("{}; back to iteration {}, to train the same once more and compare", bad.why,
                       position.iteration);
  } else {
    const recipe::IterationRange left_out = bad.LeftOut(guard, position.iteration);
    position.guard.left_out.push_back(left_out);
    ++position.guard.rewinds;
    text =
        fmt::format("{}; back to iteration {}, leaving out {} (rewind {} of at most {})", bad.why,
                    position.iteration, recipe::ToText(left_out), position.guard.rewinds, guard.max_rewinds);
  }
  const RewindReport report{.iteration = position.iteration,
                            .consumed_samples = position.consumed_samples,
                            .bad_iteration = bad.iteration,
                            .rewinds = position.guard.rewinds};
  return Return{.position = std::move(position), .report = report, .text = std::move(text)};
}

absl::Status Rewinds::MayRewind(const Departure& left) const {
  RETURN_IF_ERROR(copies_);
  const bool stops = left.bad.act == BadIteration::Act::kStop;
  const std::int64_t most = run_.recipe.guard.max_rewinds;
  if (!stops && left.guard.rewinds < most) return absl::OkStatus();
  const std::string why =
      left.bad.why + (rerun_ ? ", also when it was trained once more, so no machine is at fault" : "");
  const absl::Status end =
      stops ? DataLoss("{}, {}", why, kSpoilt)
            : DataLoss("{}; the training has gone back as often as guard.max_rewinds {} allows", why, most);
  return rerun_ ? WithVerdict(end, Verdict::kTrue) : end;
}

absl::StatusOr<Position> Rewinds::LoadBefore(std::int64_t latest, std::int64_t every, const BadIteration& bad,
                                             bool resumed, const std::optional<StartPoint>& start) {
  run_.Begin(launch::Work::kAlone, "going back to a checkpoint");
  ++returns_;
  // Nobody's weights are replaced while another rank may still send it some.
  if (run_.processes != nullptr) RETURN_IF_ERROR(run_.processes->Barrier(fmt::format("return {}", returns_)));
  ASSIGN_OR_RETURN(
      const std::optional<ResumePoint> point,
      AgreeOnRewindPoint(run_.options.out, latest, every, returns_, run_.Leads(), run_.processes));
  for (const std::string& note : point ? point->notes : std::vector<std::string>())
    Print(stderr, "note: {}\n", note);
  if (!point && resumed)
    return DataLoss("{}; {} has no checkpoint of iteration {} or before to go back to", bad.why,
                    CheckpointRoot(run_.options.out), latest);
  if (run_.Leads()) RETURN_IF_ERROR(retention_.WentBack(point ? point->reader.metadata().iteration : 0));
  RETURN_IF_ERROR(ForgetKept(run_));
  RETURN_IF_ERROR(run_.ranks->Run([](executor::RankExecutor& rank) { return rank.Restart(); }));
  return LoadState(run_, std::nullopt, point, start);
}

}  // namespace engine::train

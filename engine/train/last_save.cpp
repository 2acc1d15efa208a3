#include "engine/train/last_save.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/units.h"
#include "engine/checkpoint/write.h"
#include "engine/state/tensors.h"
#include "engine/train/check_copies.h"

namespace engine::train {
namespace {

using std::chrono::seconds;

constexpr seconds kFirstPause{1};     // before the second try; twice as long before each further one
constexpr seconds kLongestPause{30};  // so that no more than this is lost once there is room
constexpr seconds kToldEvery{60};
constexpr std::chrono::milliseconds kLook{100};  // for a signal, and for the run's end

// What rank 0 has decided for all.
absl::Status Agree(const RunContext& run, const std::string& key, bool* decision) {
  if (run.processes == nullptr) return absl::OkStatus();
  if (run.Leads()) return run.processes->Set(key, *decision ? "1" : "0");
  ASSIGN_OR_RETURN(const std::string answer, run.processes->Get(key));
  *decision = answer == "1";
  return absl::OkStatus();
}

// A stop may come while an earlier checkpoint is still being written. One is written at a time, so another one is worth it only if it is whole
// before the run is killed.
absl::Status IsWorthSaving(const RunContext& run, std::int64_t iteration, Clock::time_point last_began,
                           Saver& saver, bool* saves) {
  if (!run.Leads()) run.Begin(launch::Work::kSaving, fmt::format("the stop after iteration {}", iteration));
  if (const std::int64_t before = saver.under_way(); run.Leads() && before > 0) {
    RETURN_IF_ERROR(saver.Finish());
    const double left =
        static_cast<double>(run.recipe.launch.grace_period_s) - MillisecondsSince(last_began) / 1e3;
    *saves =
        saver.newest() != before || saver.last_seconds() < left;  // where it failed, much is lost without
    if (!*saves) {
      run.Say(fmt::format(
          "iteration {} is not saved: the checkpoint of iteration {} took {:.1f} s, and of "
          "launch.grace_period_s {} are {:.1f} s left",
          iteration, before, saver.last_seconds(), run.recipe.launch.grace_period_s, std::max(left, 0.0)));
    }
  }
  return Agree(run, "saves at the stop", saves);
}

absl::Status SaveOnce(const RunContext& run, const Position& position, const EndOfTraining& end,
                      Saver& saver) {
  if (saver.under_way() == position.iteration) RETURN_IF_ERROR(saver.Finish());
  if (saver.newest() == position.iteration) return absl::OkStatus();
  bool is_worth_it = true;
  if (end.stopped)
    RETURN_IF_ERROR(IsWorthSaving(run, position.iteration, end.last_began, saver, &is_worth_it));
  if (!is_worth_it) return saver.Finish();
  if (run.recipe.guard.hash_interval > 0 && !CopiesAreCompared(run.recipe, position.iteration))
    RETURN_IF_ERROR(CheckCopies(run, position.iteration));
  RETURN_IF_ERROR(saver.Save(position));
  return saver.Finish();
}

// The most that a checkpoint takes while it is written. Ranks of other processes are taken to have as many pieces as this one's.
std::int64_t RoomOf(const RunContext& run) {
  const std::vector<checkpoint::TensorInfo> tensors = state::TensorsOf(run.plan);
  std::int64_t pieces = 0;
  for (const auto& rank : run.ranks->executors())
    pieces += static_cast<std::int64_t>(state::PiecesOf(run.plan, tensors, *rank).size());
  const auto here = static_cast<std::int64_t>(run.ranks->executors().size());
  const std::int64_t world = run.plan.mesh.world();
  return checkpoint::CheckpointRoom(tensors, (pieces * world + here - 1) / here, world);
}

// What would help.
std::string Needed(const RunContext& run, const Saver& saver) {
  const std::string root = CheckpointRoot(run.options.out);
  if (saver.LastIsInFolder())
    return fmt::format("{} has to take it; it is whole in {}", run.recipe.checkpoint.upload, root);
  const std::int64_t bytes = RoomOf(run);
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(run.options.out, error);
  const std::string there =
      error ? ""
            : fmt::format(", where {} are free", FormatBytes(static_cast<std::int64_t>(space.available)));
  return fmt::format("it takes up to {} in {}{}", FormatBytes(bytes), root, there);
}

// Says once a minute what is waited for.
class Teller {
 public:
  Teller(const RunContext& run, seconds patience, Clock::time_point until)
      : run_(run), patience_(patience), until_(until) {}

  void Tell(const Saver& saver) {
    const auto now = Clock::now();
    if (run_.reporter == nullptr || now < next_) return;
    const bool is_first = next_ == Clock::time_point();
    const seconds left = is_first ? patience_ : std::chrono::ceil<seconds>(until_ - now);
    const std::time_t end = std::time(nullptr) + left.count();
    run_.reporter->Warn(
        fmt::format("{}; it is tried again for {} s, until {:%F %T %z} (checkpoint.final_patience): {}{}",
                    Message(saver.Last()), left.count(), fmt::localtime(end), Needed(run_, saver),
                    is_first ? "; a second signal ends the wait" : ""));
    next_ = now + kToldEvery;
  }

 private:
  const RunContext& run_;
  const seconds patience_;
  const Clock::time_point until_;
  Clock::time_point next_ = {};
};

// False: a signal ends the wait. Error: the run has ended.
absl::StatusOr<bool> Pause(const RunContext& run, const StopSignals& stop, Clock::time_point until) {
  while (!stop.insisted()) {
    if (run.processes != nullptr) RETURN_IF_ERROR(run.processes->status());
    const auto left = until - Clock::now();
    if (left <= Clock::duration::zero()) return true;
    std::this_thread::sleep_for(std::min<Clock::duration>(left, kLook));
  }
  return false;
}

}  // namespace

absl::Status SaveLast(const RunContext& run, const StopSignals& stop, const Position& position,
                      const EndOfTraining& end, Saver& saver) {
  saver.EndAt(position.iteration);
  RETURN_IF_ERROR(SaveOnce(run, position, end, saver));
  const seconds patience(run.recipe.checkpoint.final_patience);
  const Clock::time_point until = Clock::now() + patience;
  Teller teller(run, patience, until);
  Clock::duration pause = kFirstPause;
  for (std::int64_t failed = 1; !saver.Last().ok(); ++failed) {
    bool again = MayPass(saver.Last()) && Clock::now() < until;
    RETURN_IF_ERROR(Agree(run, fmt::format("the last checkpoint after {} tries", failed), &again));
    if (!again) return absl::OkStatus();
    teller.Tell(saver);
    run.Begin(launch::Work::kAlone,
              fmt::format("the wait for room for the checkpoint of iteration {}", position.iteration));
    ASSIGN_OR_RETURN(const bool goes_on, Pause(run, stop, std::min(until, Clock::now() + pause)));
    if (!goes_on) return absl::OkStatus();
    pause = std::min<Clock::duration>(2 * pause, kLongestPause);
    RETURN_IF_ERROR(saver.TryAgain(position));
  }
  return absl::OkStatus();
}

}  // namespace engine::train

// A run's state to and from its checkpoints.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/store.h"
#include "engine/train/position.h"
#include "engine/train/resume.h"
#include "engine/train/run_context.h"
#include "engine/train/start.h"

namespace engine::train {

// Whether the recipe wants a checkpoint after this iteration, from 1.
bool CheckpointDue(const recipe::Recipe& recipe, std::int64_t iteration);

// Fills the ranks from the host's memory, where `kept` is a position of it; from the checkpoint that the run goes on from; where there is none with the first weights, those of
// `start` among them. Returns where that is.
absl::StatusOr<Position> LoadState(const RunContext& run, const std::optional<Position>& kept,
                                   const std::optional<ResumePoint>& resume,
                                   const std::optional<StartPoint>& start);

// Saves a run's state: beside the iterations that follow, where the recipe has checkpoints between iterations and
// checkpoint.background, else while training waits. One checkpoint is under way at a time. All ranks' processes save in the same order.
class Saver {
 public:
  // The first two live as long as this. `damaged_in_bucket`: as in ResumePoint.
  Saver(const RunContext& run, checkpoint::Retention& retention, std::set<std::int64_t> damaged_in_bucket)
      : run_(run), retention_(retention), damaged_in_bucket_(std::move(damaged_in_bucket)) {}
  ~Saver();  // waits for what is under way

  // Takes the host's memory for copies of the ranks' state, where saving beside training needs it; before the first iteration.
  // Error: the host has not so much.
  absl::Status Prepare();
  // Saves the state as it is after all iterations that were started, waiting first for the checkpoint that is under way.
  absl::Status Save(const Position& position);
  // Tells what has become of the checkpoint that is under way, if that is known. An error is that of writing it, or of deleting older
  // ones.
  absl::Status Poll();
  // Waits for it, and tells.
  absl::Status Finish();
  bool is_under_way() const { return under_way_.has_value(); }
  // How long the newest checkpoint that was told has taken, in all; 0: there is none.
  double last_seconds() const { return last_seconds_; }
  // Whether the newest checkpoint that was told is in the bucket too, where the run has one. One that could not be put there is a
  // warning until the run ends: the next one takes it along.
  absl::Status InBucket() const { return in_bucket_; }

 private:
  // A checkpoint that is whole in the run's folder.
  struct Written {
    double elapsed_ms = 0;                   // until it was in the bucket too, where it is to be
    absl::Status in_bucket = {};             // why it is not
    std::vector<std::string> warnings = {};  // of what else went wrong in the bucket
  };
  struct UnderWay {
    std::int64_t iteration = 0;
    std::future<absl::StatusOr<Written>> written;  // once the checkpoint is whole
    std::future<absl::Status> ended;               // and what retention does not keep is deleted
  };

  bool background() const { return run_.ranks->executors().front()->snapshot().reserved(); }
  checkpoint::Metadata MetadataAt(const Position& position) const;
  absl::Status Begin(const Position& position);
  absl::StatusOr<Written> Write(const checkpoint::Metadata& metadata, const std::string& key,
                                Clock::time_point start);
  // Error: the place there is another run's by now.
  absl::Status PutIntoBucketAndPrune(std::int64_t iteration, Clock::time_point start, Written* written);
  launch::Work Work() const;
  // Training stands still meanwhile.
  template <typename T>
  void Wait(const std::future<T>& future);
  absl::Status Tell();

  const RunContext& run_;
  checkpoint::Retention& retention_;          // by the thread that saves, while there is one
  std::set<std::int64_t> damaged_in_bucket_;  // likewise
  std::optional<UnderWay> under_way_;
  absl::Status in_bucket_;
  double last_seconds_ = 0;
  std::int64_t saves_ = 0;  // that were begun
  double stall_ms_ = 0;     // for which training stood still, since the last checkpoint that was told
};

}  // namespace engine::train

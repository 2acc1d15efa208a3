// A run's state to and from its checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/store.h"
#include "engine/train/memory_checkpoints.h"
#include "engine/train/position.h"
#include "engine/train/resume.h"
#include "engine/train/run_context.h"
#include "engine/train/start.h"

namespace engine::train {

// Whether what failed so may be done later: the disk was full, or the storage did not answer.
bool MayPass(const absl::Status& failure);

// Whether the recipe wants a checkpoint after this iteration, from 1.
bool CheckpointDue(const recipe::Recipe& recipe, std::int64_t iteration);

// Fills the ranks from the hosts' memory, where `kept` is a state in it; from the checkpoint that the run goes on from; where there is none with the first weights, those of
// `start` among them. Returns where that is.
absl::StatusOr<Position> LoadState(const RunContext& run, const std::optional<KeptState>& kept,
                                   const std::optional<ResumePoint>& resume,
                                   const std::optional<StartPoint>& start);

// Saves a run's state: beside the iterations that follow, where the recipe has checkpoints between iterations and
// checkpoint.background, else while training waits. One checkpoint is under way at a time. All ranks' processes save in the same order.
// Training goes on after a checkpoint that could not be written, as the disk may have room for the next one, unless
// checkpoint.required; what no other try cures (another run's folder or bucket, hosts that do not share a file system) is an error. At the run's end
// no next one comes, so that the caller tries again what has failed (train/last_save.h).
class Saver {
 public:
  // The first two live as long as this. `newest`: the iteration of the checkpoint that the run goes on from; 0: there is none.
  // `damaged_in_bucket`: as in ResumePoint.
  Saver(const RunContext& run, checkpoint::Retention& retention, std::int64_t newest,
        std::set<std::int64_t> damaged_in_bucket)
      : run_(run), retention_(retention), newest_(newest), damaged_in_bucket_(std::move(damaged_in_bucket)) {}
  ~Saver();  // waits for what is under way

  // Takes the host's memory for copies of the ranks' state, where saving beside training needs it; before the first iteration.
  // Error: the host has not so much.
  absl::Status Prepare();
  // Saves the state as it is after all iterations that were started, waiting first for the checkpoint that is under way.
  absl::Status Save(const Position& position);
  // The run ends with the checkpoint of this iteration. What may pass is no error of that one, and is not told, as if there were a next one: Last() has it,
  // and TryAgain may help.
  void EndAt(std::int64_t iteration) { end_ = iteration; }
  // Does once more what Last() says has failed: saves the state, which is that of `position`, or puts the newest checkpoint into the bucket. None is
  // under way before or afterwards.
  absl::Status TryAgain(const Position& position);
  // The run has gone back to the state after this iteration; no checkpoint is under way.
  void GoBackTo(std::int64_t iteration) { newest_ = iteration; }
  // Tells what has become of the checkpoint that is under way, if that is known. An error is one of writing it that ends the run, or of
  // deleting older ones.
  absl::Status Poll();
  // Waits until it is in the run's folder, or cannot be; it may still be on its way to the bucket.
  void AwaitFolder();
  // Waits for it, and tells.
  absl::Status Finish();
  // The iteration of the checkpoint that is under way; 0: there is none.
  std::int64_t under_way() const { return under_way_ ? under_way_->iteration : 0; }
  // The iteration of the newest checkpoint that was told of and is whole, or that the run has gone on from; 0: there is none.
  std::int64_t newest() const { return newest_; }
  // How long it has taken, in all; 0: this run has written none.
  double last_seconds() const { return last_seconds_; }
  // What is wrong with the last checkpoint that was told: it could not be written, or could not be put into the bucket, where the run
  // has one. A warning until the run ends, as the next one stands for it, and takes an older one along into the bucket. The same in all processes.
  absl::Status Last() const { return last_; }
  // Whether Last() is about the bucket alone.
  bool LastIsInFolder() const { return last_is_in_folder_; }

 private:
  struct Written {
    absl::Status failure = {};    // why no checkpoint is in the run's folder, where training goes on
    double elapsed_ms = 0;        // until it was in the bucket too, where it is to be
    absl::Status in_bucket = {};  // why it is not
    std::vector<std::string> warnings = {};  // of what else went wrong in the bucket; rank 0's
  };
  struct UnderWay {
    std::int64_t iteration = 0;
    bool is_put_again = false;    // it was whole in the folder before, and goes into the bucket
    std::future<void> in_folder;  // ready once it is whole there, or will not be
    std::future<absl::StatusOr<Written>> written;  // once the checkpoint is whole
    std::future<absl::Status> ended;               // and what retention does not keep is deleted
  };

  bool background() const { return run_.ranks->executors().front()->snapshot().reserved(); }
  checkpoint::Metadata MetadataAt(const Position& position) const;
  absl::Status Begin(const Position& position);
  // Begins what `write` does, in a thread, for the checkpoint of this iteration, which it gives another key each time. It keeps the promise, or
  // drops it, once the folder has the checkpoint, or will not have it.
  using WriteIt =
      std::function<absl::StatusOr<Written>(const std::string& key, std::promise<void> in_folder)>;
  void Launch(std::int64_t iteration, bool is_put_again, WriteIt write);
  absl::StatusOr<Written> Write(const checkpoint::Metadata& metadata, const std::string& key,
                                Clock::time_point start, std::promise<void> in_folder);
  bool HasBucket() const { return !run_.recipe.checkpoint.upload.empty(); }
  // Errors: the place there is another run's by now; the run has ended.
  absl::Status PutIntoBucketAndPrune(std::int64_t iteration, const std::string& key, Clock::time_point start,
                                     Written* written);
  launch::Work Work() const;
  // Training stands still meanwhile.
  template <typename T>
  void Wait(const std::future<T>& future);
  absl::Status Tell();
  void TellFailure(std::int64_t iteration);

  const RunContext& run_;
  checkpoint::Retention& retention_;  // by the thread that saves, while there is one
  std::int64_t newest_;
  std::set<std::int64_t> damaged_in_bucket_;  // likewise by the thread that saves
  std::optional<UnderWay> under_way_;
  absl::Status last_;
  bool last_is_in_folder_ = false;
  std::optional<std::int64_t> end_;  // the iteration with whose checkpoint the run ends; nullopt: it goes on
  std::int64_t failures_ = 0;        // checkpoints that could not be written
  double last_seconds_ = 0;
  std::int64_t saves_ = 0;  // that were begun
  double stall_ms_ = 0;     // for which training stood still, since the last checkpoint that was told
};

}  // namespace engine::train

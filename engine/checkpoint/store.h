// A root folder of checkpoints, one an iteration: which to resume from, which to delete.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace engine::checkpoint {

// Iterations that ROOT has a folder for, rising, whole or not. A root that does not exist is empty.
absl::StatusOr<std::vector<std::int64_t>> ListIterations(const std::string& root);

// The folder of the newest checkpoint, of iteration `last` or before, that opens and whose checksums all match; nullopt if
// there is none. Each newer one that is damaged or incomplete adds a line with the reason to *reports.
inline constexpr std::int64_t kAnyIteration = std::numeric_limits<std::int64_t>::max();
absl::StatusOr<std::optional<std::string>> FindNewestWhole(const std::string& root,
                                                           std::vector<std::string>* reports,
                                                           std::int64_t last = kAnyIteration);

// In two steps, rename and removal, so that a crash leaves no checkpoint with some of its files missing. Does nothing where the folder
// holds another iteration than it is named for: somebody has renamed or copied it.
absl::Status DeleteCheckpoint(const std::string& root, std::int64_t iteration);

// Removes what processes that died left in ROOT: unfinished writes and deletions. A checkpoint that was just
// being replaced, on a file system without atomic exchange, gets its name back. Folders of live writers are
// let be.
absl::Status RemoveLeftovers(const std::string& root);

// Decides which checkpoints under ROOT stay: the `keep` newest whole ones (0: all of them). Checkpoints that
// this process has saved are newer than those that it found, the last saved first; those that it found are
// ordered by iteration. One that this process has saved, and synced, is whole while its manifest and its
// files' sizes are right. One that it found must have the right checksums, too; they are computed once, and
// only where a deletion depends on them.
class Retention {
 public:
  // `every`: only checkpoints of multiples of so many iterations are among the `keep`; others, of a stop, stay as long as an older one does.
  Retention(std::string root, int keep, std::int64_t every = 1)
      : root_(std::move(root)), keep_(keep), every_(every) {}

  // The run goes on from this checkpoint, whose checksums match.
  void Resumed(std::int64_t iteration);
  void Saved(std::int64_t iteration);
  // The run goes on from this checkpoint, or with 0 perhaps from none, though it has been further: its own checkpoints behind that are
  // of iterations that did not count. Until the next one is saved they stay, as a run that is killed has no better ones.
  absl::Status WentBack(std::int64_t iteration);

  // Deletes those, but what has been saved anew since. Then deletes the checkpoints that are older than those that stay, if there are `keep` of these. Never deletes
  // one that is newer than what was resumed or saved last, nor one that holds another iteration than it is
  // named for: those are somebody's copies, and count for nothing here. A crash at any moment leaves whole
  // checkpoints and leftovers, no halves.
  absl::Status Prune();

 private:
  bool IsWhole(std::int64_t iteration);

  std::string root_;
  int keep_ = 0;
  std::int64_t every_ = 1;
  std::int64_t newest_ = -1;               // last iteration resumed or saved
  std::vector<std::int64_t> saved_;        // iterations that this process saved, oldest save first
  std::set<std::int64_t> abandoned_;       // iterations whose checkpoints the run has gone back behind
  std::map<std::int64_t, bool> verified_;  // iterations that it found: whether their checksums match
};

}  // namespace engine::checkpoint

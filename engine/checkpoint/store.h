// A root folder of checkpoints, one an iteration: which to resume from, which to delete.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace engine::checkpoint {

// Iterations that ROOT has a folder for, rising, whole or not. A root that does not exist is empty.
absl::StatusOr<std::vector<std::int64_t>> ListIterations(const std::string& root);

// The folder of the newest checkpoint that opens and whose checksums all match; nullopt if there is none.
// Each newer one that is damaged or incomplete adds a line with the reason to *reports.
absl::StatusOr<std::optional<std::string>> FindNewestWhole(const std::string& root,
                                                           std::vector<std::string>* reports);

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
  Retention(std::string root, int keep) : root_(std::move(root)), keep_(keep) {}

  // The run goes on from this checkpoint, whose checksums match.
  void Resumed(std::int64_t iteration);
  void Saved(std::int64_t iteration);

  // Deletes the checkpoints that are older than those that stay, if there are `keep` of these. Never deletes
  // one that is newer than what was resumed or saved last, nor one that holds another iteration than it is
  // named for: those are somebody's copies, and count for nothing here. A crash at any moment leaves whole
  // checkpoints and leftovers, no halves.
  absl::Status Prune();

 private:
  bool IsWhole(std::int64_t iteration);

  std::string root_;
  int keep_ = 0;
  std::int64_t newest_ = -1;               // last iteration resumed or saved
  std::vector<std::int64_t> saved_;        // iterations that this process saved, oldest save first
  std::map<std::int64_t, bool> verified_;  // iterations that it found: whether their checksums match
};

}  // namespace engine::checkpoint

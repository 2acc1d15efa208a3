// A root folder of checkpoints, one an iteration: which to resume from, which to delete.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
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

// Deletes every checkpoint older than the `keep` (at least 1) newest whole ones. Whole means that it opens,
// and for the newest of them that its checksums match too: it is never deleted, nor is anything if there is
// none. A crash at any moment leaves whole checkpoints and leftovers, no halves.
absl::Status Prune(const std::string& root, int keep);

}  // namespace engine::checkpoint

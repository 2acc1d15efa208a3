// Checkpoints that a run keeps in a bucket of S3 (`checkpoint.upload`): written and read in the run's folder, which has
// those that are not in the bucket, and the newest.
//
//   s3://BUCKET/KEY/iteration_0000100/…   the files of ROOT/iteration_0000100 (checkpoint/layout.h), the manifest put there last
//
// What has no manifest there is no checkpoint: a part of one that was being put there, or deleted. `prefix` is s3://BUCKET/KEY, whose owner train/bucket_claim.h
// knows.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/recipe.h"
#include "engine/train/bucket_claim.h"

namespace engine::train {

// A note at checkpoint.upload, where this machine lacks what writing there takes; nullopt where nothing is missing, or nothing is uploaded.
std::optional<Diagnostic> CheckUpload(const recipe::Recipe& recipe);
// Whether an object can be written there and removed, tried with the server.
absl::Status TryBucket(const std::string& prefix);

// The line that tells of a checkpoint that is passed over.
std::string NotUsed(const std::string& folder, const absl::Status& why);

// Iterations of the checkpoints there, rising.
absl::StatusOr<std::vector<std::int64_t>> ListBucket(const std::string& prefix);

// The text of a checkpoint's manifest there. NotFound where it has none.
absl::StatusOr<std::string> ReadManifestText(const std::string& prefix, std::int64_t iteration);
// Copies one from there to ROOT/iteration_…, in place of a damaged one, where there is one, and compares its checksums. DataLoss where it is damaged.
absl::Status FetchCheckpoint(const std::string& prefix, std::int64_t iteration, const std::string& root);
// Whether a folder of this machine is a whole checkpoint of that iteration. Compares checksums.
absl::Status VerifyFolder(const std::string& folder, std::int64_t iteration);

// Copies the newest whole one from there to `root`, unless `root` has a whole one that is as new. Checksums are compared; each newer one that
// does not match adds a line to *reports. Returns the iterations of these.
absl::StatusOr<std::set<std::int64_t>> FetchFromBucket(const std::string& prefix, const std::string& root,
                                                       std::vector<std::string>* reports);

// Deletes what is not needed when iteration `newest` has been put there: in `root` the checkpoints before it that are there too; there, of
// those up to `newest`, all that are older than the `keep` newest (0: all stay) that are not `damaged`, and what has no manifest.
// AlreadyExists: another run, or attempt, has the place by now (BucketClaim::Check).
absl::Status PruneBucket(const BucketClaim& claim, std::int64_t newest, std::int64_t keep,
                         const std::set<std::int64_t>& damaged, const std::string& root);

}  // namespace engine::train

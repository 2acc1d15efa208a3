// The objects of checkpoints in a bucket, as they are listed and deleted, and files that go there or come from there several at once
// (train/bucket.h has what they mean).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace engine::train {

// The objects of one iteration.
struct InBucket {
  std::vector<std::string> names;  // whole, without the manifest's
  bool has_manifest = false;
};
using InBucketByIteration = std::map<std::int64_t, InBucket>;

// The manifest's name in the folder of a checkpoint, of a disk or a bucket.
std::string ManifestIn(const std::string& folder);

absl::StatusOr<InBucketByIteration> ListObjects(const std::string& prefix);
// Iterations of those that have a manifest, rising.
std::vector<std::int64_t> WholeOf(const InBucketByIteration& found);
// The manifest first, so that no part of a checkpoint is taken for a whole one.
absl::Status DeleteObjects(const std::string& prefix, std::int64_t iteration, const InBucket& objects);

// Calls `one` for each of [0, count), for a few at once, each in a thread; where one fails, none is begun any more. Returns the first failure
// of this thread, or another's.
absl::Status ForEachFile(std::size_t count, const std::function<absl::Status(std::size_t)>& one);

}  // namespace engine::train

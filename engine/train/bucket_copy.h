// Checkpoints in a bucket for those that read folders: copies in the cache's folder (base/cache_folder.h),
//
//   CACHE/checkpoints/<hash of the name and the manifest>/iteration_…
//
// so that what has been replaced under a name is fetched anew. Copies that nobody has used for a day go when another one comes.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace engine::train {

// What s3:// names: one checkpoint, s3://BUCKET/KEY/iteration_…, or all below s3://BUCKET/KEY.
struct InBucketName {
  std::string prefix;           // s3://BUCKET/KEY
  std::int64_t iteration = -1;  // −1: none is named
};
// Errors: it is not of S3, or of a whole bucket; what S3 needs is not in the environment.
absl::StatusOr<InBucketName> ParseBucketName(const std::string& name);

// The manifest of one there, all of whose files are there with their sizes. NotFound where it has none; DataLoss where it is damaged.
absl::StatusOr<checkpoint::Manifest> ReadManifestInBucket(const std::string& prefix, std::int64_t iteration);

// Whether all files of one there have their checksums: all are read, and the copy is made anew. DataLoss where one has not.
absl::Status VerifyInBucket(const std::string& prefix, std::int64_t iteration);

// `name` itself, where it is no URL. Else a folder of this machine with the checkpoint that it names, or with the newest whole one below it; its
// checksums have been compared. Adds a line to *reports for each newer one that is damaged, and one with the folder.
absl::StatusOr<std::string> LocalCheckpoint(const std::string& name, std::vector<std::string>* reports);

}  // namespace engine::train

// Reads any box of any tensor of a checkpoint, however it was cut when it was written.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/tensor_source.h"

namespace engine::checkpoint {

// The iteration that the manifest in `folder` is of, whatever the folder is called. Errors as of
// Reader::Open.
absl::StatusOr<std::int64_t> ReadIteration(const std::string& folder);

// Constant after Open, so many threads may read at once.
class Reader : public TensorSource {
 public:
  // `folder` is ROOT/iteration_…, or has a name of the user's. Checks the manifest wholly, that it is of the
  // iteration in the folder's name, and that every file is there with its size; reads no tensor data.
  // NotFound where there is no manifest; DataLoss, with what is wrong, for a damaged checkpoint;
  // InvalidArgument where something other than a regular file stands in the place of one of its files.
  static absl::StatusOr<Reader> Open(const std::string& folder);

  // Compares every file's checksum; reads the whole checkpoint once.
  absl::Status Verify() const;

  // Fills `out`, row-major and contiguous, with the elements of `box` in the tensor's own dtype.
  absl::Status Read(const std::string& tensor, const Box& box, void* out) const override;

  const std::string& folder() const { return folder_; }
  const Metadata& metadata() const { return manifest_.metadata; }
  const std::vector<TensorInfo>& tensors() const override { return manifest_.tensors; }
  const TensorInfo* Find(const std::string& tensor) const override;
  const Manifest& manifest() const { return manifest_; }
  std::int64_t bytes() const;  // of all files that the manifest lists

 private:
  std::string folder_;
  Manifest manifest_;
  absl::flat_hash_map<std::string, int> index_;  // tensor's name → its place in manifest_.tensors
};

}  // namespace engine::checkpoint

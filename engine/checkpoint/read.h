// Reads any box of any tensor of a checkpoint, however it was cut when it was written.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/piece_reader.h"

namespace engine::checkpoint {

// The iteration that the manifest in `folder` is of, whatever the folder is called. Errors as of
// Reader::Open.
absl::StatusOr<std::int64_t> ReadIteration(const std::string& folder);

// Constant after Open, so many threads may read at once.
class Reader : public PieceReader {
 public:
  // `folder` is ROOT/iteration_…, or has a name of the user's. Checks the manifest wholly, that it is of the
  // iteration in the folder's name, and that every file is there with its size; reads no tensor data.
  // NotFound where there is no manifest; DataLoss, with what is wrong, for a damaged checkpoint;
  // InvalidArgument where something other than a regular file stands in the place of one of its files.
  static absl::StatusOr<Reader> Open(const std::string& folder);

  // Compares every file's checksum; reads the whole checkpoint once.
  absl::Status Verify() const;

  const std::string& folder() const { return folder_; }
  std::string Name() const override { return "checkpoint " + folder_; }
  const Metadata& metadata() const { return manifest().metadata; }
  using PieceReader::manifest;
  std::int64_t bytes() const;  // of all files that the manifest lists

 private:
  absl::StatusOr<ReadAt> OpenFile(int file) const override;

  std::string folder_;
};

}  // namespace engine::checkpoint

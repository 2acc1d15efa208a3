// index.h5: every logical tensor whole, as an HDF5 virtual dataset over the shards (a scalar, which HDF5
// cannot make virtual, as an external link), so that h5py, h5ls and HDFView show a model. The engine itself
// never reads it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "engine/checkpoint/manifest.h"

namespace engine::checkpoint {

// How much disk space the file takes at first: more than it has in the end.
std::int64_t IndexRoom(std::int64_t tensors, std::int64_t pieces);

// Writes and fsyncs FOLDER/index.h5. manifest.files, tensors and pieces must be complete but for the index
// itself.
absl::StatusOr<FileInfo> WriteIndexFile(const std::string& folder, const Manifest& manifest);

}  // namespace engine::checkpoint

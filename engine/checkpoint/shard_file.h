// One rank's HDF5 file: one dataset a piece, named after its tensor and start, with attributes tensor, dtype,
// start and count.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace engine::checkpoint {

struct PieceToWrite {
  int tensor = 0;  // index into the checkpoint's tensors
  Box box;
  const void* data = nullptr;  // the box's elements, row-major and contiguous; read during the call only
};

// What the committing process must know of a shard; plain data, so that processes can send it to each other.
struct ShardRecord {
  FileInfo file;
  std::vector<int> tensors;   // of each piece
  std::vector<Piece> pieces;  // their field `file` is not set
};

// Writes and fsyncs FOLDER/rank_<rank>.h5 in one sequential pass that also computes its checksum; the data is
// copied by nothing but the kernel. Safe to call from many threads at once with different ranks.
absl::StatusOr<ShardRecord> WriteShardFile(const std::string& folder, int rank,
                                           const std::vector<TensorInfo>& tensors,
                                           const std::vector<PieceToWrite>& pieces);

}  // namespace engine::checkpoint

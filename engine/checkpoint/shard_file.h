// One rank's HDF5 file: one dataset a piece, named after its tensor and start, with attributes tensor, dtype,
// start and count.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/checkpoint/manifest.h"

namespace engine::checkpoint {

struct PieceToWrite {
  int tensor = 0;  // index into the checkpoint's tensors
  Box box;
  const void* data = nullptr;  // the box's elements, row-major and contiguous; read during the call only
  // bf16 or f16: of a tensor of f32, the elements at `data` are of that type, and widened when they are written.
  std::optional<DType> narrow = std::nullopt;
};

// What the committing process must know of a shard; plain data, so that processes can send it to each other.
struct ShardRecord {
  FileInfo file;
  std::vector<int> tensors;   // of each piece
  std::vector<Piece> pieces;  // their field `file` is not set
};

// How much disk space a shard takes at first, with so many pieces of so many bytes together: more than its file has in the end.
std::int64_t ShardRoom(std::int64_t data_bytes, std::int64_t pieces);

// Writes and fsyncs the rank's file (layout.h, ShardName) below FOLDER in one pass that also computes its checksum
// (block_writer.h). It may be called from many threads at once with different ranks.
absl::StatusOr<ShardRecord> WriteShardFile(const std::string& folder, int rank,
                                           const std::vector<TensorInfo>& tensors,
                                           const std::vector<PieceToWrite>& pieces);

}  // namespace engine::checkpoint

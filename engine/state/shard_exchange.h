// Shards of a checkpoint that several processes write: each tells rank 0 what it has written.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/shard_file.h"
#include "engine/checkpoint/write.h"
#include "engine/launch/rendezvous.h"

namespace engine::state {

// Writes the rank's shard (none where it has no pieces) into the folder that rank 0 has made, and sends its
// record under a name of `key`. Error: the folder is not seen here.
absl::Status SendShard(const std::string& folder, int rank,
                       const std::vector<checkpoint::TensorInfo>& tensors,
                       const std::vector<checkpoint::PieceToWrite>& pieces, const std::string& key,
                       launch::Client& processes);

// Waits for the record of the rank's shard and adds it. Error: the file is not seen here.
absl::Status ReceiveShard(int rank, const std::string& key, launch::Client& processes,
                          checkpoint::Writer* writer);

// The record as text, and back.
std::string ToText(const checkpoint::ShardRecord& record);
absl::StatusOr<checkpoint::ShardRecord> ShardRecordOf(const std::string& text);

}  // namespace engine::state

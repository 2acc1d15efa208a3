// Shards of a checkpoint that several processes write: each tells rank 0 what it has written.
#pragma once

#include <absl/status/statusor.h>

#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "engine/base/status.h"
#include "engine/checkpoint/shard_file.h"
#include "engine/checkpoint/write.h"
#include "engine/launch/rendezvous.h"

namespace engine::state {

// What a rank tells others, as text and back: something, or why it could not be had.
std::string ToText(const absl::StatusOr<std::string>& told);
absl::StatusOr<std::string> Told(const std::string& text);

// Writes the rank's shard (none where it has no pieces) into the folder that rank 0 has made, and tells rank 0 under a name of `key`
// what it has written, or why it could not. Error: rank 0 does not hear of it, as the run has ended.
absl::Status SendShard(const std::string& folder, int rank,
                       const std::vector<checkpoint::TensorInfo>& tensors,
                       const std::vector<checkpoint::PieceToWrite>& pieces, const std::string& key,
                       launch::Client& processes);

// Waits for what the rank tells of its shard, and adds it. `failure` gets why there is none, or why the file is not seen here, unless it is
// one already. Error: the run has ended.
absl::Status ReceiveShard(int rank, const std::string& key, launch::Client& processes,
                          checkpoint::Writer* writer, absl::Status* failure);

// What `write()` returns, where the system has the memory and the threads that it takes; else an error that says so.
template <typename Write>
auto InMemory(const Write& write) -> decltype(write()) try {
  return write();
} catch (const std::bad_alloc&) {
  return ResourceExhausted("not enough memory");
} catch (const std::system_error& error) {  // as for another thread
  return ResourceExhausted("{}", error.what());
}

// The record as text, and back.
std::string ToText(const checkpoint::ShardRecord& record);
absl::StatusOr<checkpoint::ShardRecord> ShardRecordOf(const std::string& text);

}  // namespace engine::state

// Writes one checkpoint: begin, a shard a rank, commit. Until the commit's rename the root holds nothing new
// but a temporary folder; after it the checkpoint is whole. A crash at any moment leaves one of the two.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/metadata.h"
#include "engine/checkpoint/shard_file.h"

namespace engine::checkpoint {

// About the most disk space that a checkpoint takes while it is written, of so many pieces in so many shards: shards and index take more
// at first than their files have in the end.
std::int64_t CheckpointRoom(const std::vector<TensorInfo>& tensors, std::int64_t pieces, std::int64_t shards);

// Gives a written and synced folder of ROOT the name ROOT/iteration_…. An older checkpoint of that name is exchanged in one step where the
// file system can, and otherwise kept under a name from which RemoveLeftovers restores it; a folder there that holds another iteration
// stays under another name.
absl::Status MoveIntoPlace(const std::string& folder, const std::string& root, std::int64_t iteration);

// With ranks in several processes, one process begins and commits; each of the others calls WriteShardFile
// with that one's folder() and sends it the ShardRecord, which it passes to AddShard. WriteShard does both
// for its own process.
class Writer {
 public:
  // Creates the root where needed and the temporary folder, locked against RemoveLeftovers.
  static absl::StatusOr<Writer> Begin(const std::string& root, Metadata metadata,
                                      std::vector<TensorInfo> tensors);

  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();  // without a successful Commit, removes the temporary folder

  // The rank's pieces, on disk and synced when it returns. Once a rank; ranks may come from many threads at
  // once.
  absl::Status WriteShard(int rank, const std::vector<PieceToWrite>& pieces);
  absl::Status AddShard(ShardRecord record);  // thread-safe too

  // After all shards, once. Refuses pieces that do not cover every tensor exactly once; then writes index and
  // manifest, syncs everything, and renames the folder to ROOT/iteration_…, in place of one of the same
  // iteration.
  absl::Status Commit();

  const std::string& folder() const;  // the temporary one

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace engine::checkpoint

// A copy of a rank's state in the host's memory, from which a checkpoint is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/backend/backend.h"

namespace engine::executor {

// A copy from the rank's arena, without its place in the host's memory.
struct StatePart {
  backend::SnapshotCopy copy;
  bool at_once = false;  // plan::SnapshotPart
};

class Snapshot {
 public:
  Snapshot(backend::Backend& backend, const std::vector<StatePart>& parts);

  std::int64_t bytes() const { return bytes_; }
  // Takes memory for copies that are made beside computation (plan/snapshot.h); before the first launch. From then on, updates wait
  // for copies that are under way.
  absl::Status Reserve();
  bool reserved() const { return reserved_; }

  // Copies the state as all that was launched so far leaves it: with memory that is reserved beside what is launched next, else
  // before it returns. Not before the copy that it made last is read.
  absl::Status Begin();
  // Returns when the copy is whole. Safe from any thread.
  absl::Status Finish();
  // The copy has been read; gives back memory that was not reserved.
  void Drop();
  // Where the copy of what lies at an address of the arena is. Those bytes are of a part, and of no other.
  const std::byte* Of(const std::byte* arena) const;

 private:
  void PlaceAt(std::byte* memory);

  backend::Backend& backend_;
  std::vector<backend::SnapshotCopy> at_once_, beside_;
  std::vector<backend::SnapshotCopy> by_address_;
  std::int64_t bytes_ = 0;
  bool reserved_ = false;
  std::unique_ptr<std::byte[]> memory_;  // where none is reserved
};

}  // namespace engine::executor

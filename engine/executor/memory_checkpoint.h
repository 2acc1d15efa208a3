// Checkpoints of one rank in its host's memory: copies of its whole state in a file that has no place on a disk and that lives as long as
// somebody holds it, which the rank's process need not be. A rank of the same plan that is started again fills its arena
// from there (GEMINI, Wang et al., SOSP 2023).
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/memory_copies.h"
#include "engine/executor/snapshot.h"

namespace engine::executor {

class MemoryCheckpoint {
 public:
  using Kept = MemoryCopies::Kept;

  MemoryCheckpoint(backend::Backend& backend, const std::vector<StatePart>& parts);
  ~MemoryCheckpoint();
  MemoryCheckpoint(const MemoryCheckpoint&) = delete;
  MemoryCheckpoint& operator=(const MemoryCheckpoint&) = delete;

  // Size of the file: two copies, so that one is whole while the other is made, and a page that tells of them.
  std::int64_t bytes() const { return MemoryCopies::FileBytes(copy_bytes_); }
  // Takes a file (base/memory_copies.h) for the copies; before the first launch. All that it has is forgotten but the copy of iteration
  // `keep` of this tag; −1: that, too. From then on, updates wait for copies that are under way.
  absl::Status Open(int file, const std::string& tag, std::int64_t keep);
  bool is_open() const { return copies_.has_value(); }

  // What is done with a copy that is whole, on a thread of its own.
  using OnWhole = std::function<absl::Status(const MemoryCopies& copies, int place)>;
  // Copies the state as all that was launched so far leaves it, beside what is launched next, in place of the older copy. It counts
  // once it is whole. Backend::BeginSnapshot says when that may be. Waits until `on_whole` of the copy before has returned, and
  // returns its error.
  absl::Status Begin(const Kept& kept, OnWhole on_whole = nullptr);
  // Returns when nothing is done with a copy any more.
  void AwaitWhole() const;
  // Does the same with the copy that Open has kept.
  void HandOn(OnWhole on_whole);
  // The state becomes what the copy has that Open has kept.
  absl::Status Restore();

 private:
  // Those of a copy, with their places.
  std::vector<backend::SnapshotCopy> CopiesOf(int place, bool at_once) const;

  backend::Backend& backend_;
  std::vector<StatePart> parts_;
  std::int64_t copy_bytes_ = 0;
  std::optional<MemoryCopies> copies_;  // nullopt: there is no file
  std::future<absl::Status> whole_;     // the copy that was begun last
};

}  // namespace engine::executor

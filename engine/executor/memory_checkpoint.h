// Checkpoints of one rank in its host's memory: copies of its whole state in a file that has no place on a disk and that lives as long as
// somebody holds it, which the rank's process need not be. A rank of the same plan that is started again fills its arena
// from there (GEMINI, Wang et al., SOSP 2023).
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "engine/executor/snapshot.h"

namespace engine::executor {

class MemoryCheckpoint {
 public:
  // One copy: the iteration after which the state was so, and what the caller wrote beside it.
  struct Kept {
    std::int64_t iteration = 0;
    std::string note;  // the caller's, of at most kMostNote bytes
  };
  static constexpr std::size_t kMostNote = 1000;

  // The whole copies of a file, of runs that agree in `tag` (32 characters; empty: of any run), in order of iteration.
  static std::vector<Kept> In(int file, const std::string& tag = "");

  MemoryCheckpoint(backend::Backend& backend, const std::vector<StatePart>& parts);
  ~MemoryCheckpoint();
  MemoryCheckpoint(const MemoryCheckpoint&) = delete;
  MemoryCheckpoint& operator=(const MemoryCheckpoint&) = delete;

  // Size of the file: two copies, so that one is whole while the other is made, and a page that tells of them.
  std::int64_t bytes() const;
  // Takes a file (memfd_create(2)) for the copies; before the first launch. All that it has is forgotten but the copy of iteration
  // `keep` of this tag; −1: that, too. From then on, updates wait for copies that are under way.
  absl::Status Open(int file, const std::string& tag, std::int64_t keep);
  bool is_open() const { return header_ != nullptr; }

  // Copies the state as all that was launched so far leaves it, beside what is launched next, in place of the older copy. It counts
  // once it is whole. Backend::BeginSnapshot says when that may be.
  absl::Status Begin(const Kept& kept);
  // The state becomes what the copy has that Open has kept.
  absl::Status Restore();

 private:
  struct Header;

  // Those of a copy, with their places.
  std::vector<backend::SnapshotCopy> CopiesOf(int slot, bool at_once) const;
  std::byte* MemoryOf(int slot) const;

  backend::Backend& backend_;
  std::vector<StatePart> parts_;
  std::int64_t copy_bytes_ = 0;
  Header* header_ = nullptr;         // where the file is mapped; null: there is none
  std::future<absl::Status> whole_;  // the copy that was begun last
};

}  // namespace engine::executor

// Two copies of a rank's state in a file that has no place on a disk (memfd_create(2)) and lives as long as somebody holds it: one is
// whole while the other is made. Processes that map the same file see the same copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace engine {

class MemoryCopies {
 public:
  // One copy: the iteration after which the state was so, and what the owner wrote beside it.
  struct Kept {
    std::int64_t iteration = 0;
    std::string note;  // of at most kMostNote bytes
  };
  static constexpr std::size_t kMostNote = 1000;
  static constexpr std::size_t kTagBytes = 32;

  // The whole copies of a file, of runs that agree in `tag` (kTagBytes characters; empty: of any run), in order of iteration.
  static std::vector<Kept> In(int file, const std::string& tag = "");
  // The tag of a file; empty: it holds no copies.
  static std::string TagIn(int file);
  // Fills `out` from byte `offset` on of the file's whole copy of that tag and iteration. Error: there is none, or it is not so long.
  static absl::Status ReadAt(int file, const std::string& tag, std::int64_t iteration, std::int64_t offset,
                             std::span<std::byte> out);
  // Size of a file: two copies, and a page that tells of them.
  static std::int64_t FileBytes(std::int64_t copy_bytes);

  // Maps a file for copies of this tag and size. What it has of another tag or size is forgotten. Error: too little memory.
  static absl::StatusOr<MemoryCopies> Open(int file, const std::string& tag, std::int64_t copy_bytes);
  // As it is. Error: it holds no copies.
  static absl::StatusOr<MemoryCopies> Open(int file);
  MemoryCopies(MemoryCopies&& other) noexcept
      : header_(std::exchange(other.header_, nullptr)), copy_bytes_(other.copy_bytes_) {}
  MemoryCopies& operator=(MemoryCopies&& other) = delete;
  ~MemoryCopies();

  std::string tag() const;
  std::int64_t copy_bytes() const { return copy_bytes_; }
  std::byte* MemoryOf(int place) const;
  Kept At(int place) const;
  // Where the whole copy of that iteration is, or of any (−1); nullopt: there is none.
  std::optional<int> Find(std::int64_t iteration = -1) const;

  void ForgetAllBut(std::int64_t iteration);
  // A copy is to be made in place of the older one, which is forgotten; its place. It counts once it is finished.
  int Begin(const Kept& kept);
  void Finish(int place);

 private:
  struct Header;
  class Page;
  MemoryCopies(Header* header, std::int64_t copy_bytes) : header_(header), copy_bytes_(copy_bytes) {}

  Header* header_ = nullptr;  // where the file is mapped
  std::int64_t copy_bytes_ = 0;
};

}  // namespace engine

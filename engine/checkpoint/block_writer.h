// A file written from its beginning to its end, several blocks at once.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/dtype.h"

namespace engine::checkpoint {

// Gathers what is appended in blocks, hashes it, and hands full blocks to threads that write them. Where the file system can, they
// go past the page cache (O_DIRECT), at the speed of the disk and without taking memory from others; else through it. A file of one
// block is written by the caller's thread.
class BlockWriter {
 public:
  static constexpr std::int64_t kBlockBytes = std::int64_t{8} << 20;
  static constexpr int kThreads = 3;  // that write; a fourth block is filled meanwhile

  // Creates or empties the file. `expected_bytes`, of which it may have more or fewer: of disk space to be taken at once, so that a
  // disk that is too small is found early. Errors: those of the file system, with the path.
  static absl::StatusOr<BlockWriter> Create(const std::string& path, std::int64_t expected_bytes);

  BlockWriter(BlockWriter&&) noexcept;
  BlockWriter& operator=(BlockWriter&&) noexcept;
  ~BlockWriter();  // waits for the threads

  // `data` is free again on return. An error may be that of an earlier block.
  absl::Status Append(const void* data, std::int64_t bytes);
  // Numbers of bf16 or f16, as f32.
  absl::Status AppendWidened(const std::byte* data, DType dtype, std::int64_t elements);
  // Bytes that were appended.
  std::int64_t bytes() const;
  // Writes the rest, gives the file its size and syncs it. Once; afterwards nothing is appended.
  absl::Status Finish();
  // XXH3-128 of all that was appended.
  std::string Checksum() const;
  // Whether it goes past the page cache.
  bool direct() const;

 private:
  struct State;
  explicit BlockWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace engine::checkpoint

// Reading here and there in an object, with what will be wanted fetched beforehand.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <string>

#include "engine/storage/storage.h"

namespace engine::storage {

class BlockCache;

// Whether somebody waits: what is wanted now goes before all that is wanted later.
enum class When { kNow, kLater };

// Blocks of 32 KiB, which all readers of a process keep in 256 MiB together; those go that were not used for longest. Up to 16
// requests are under way at once, each for up to 8 MiB of blocks that follow one another. Callable from any thread. An object has one reader.
class BlockReader {
 public:
  explicit BlockReader(std::shared_ptr<const Object> object);
  ~BlockReader();
  BlockReader(BlockReader&& other) noexcept;
  BlockReader& operator=(BlockReader&& other) noexcept;

  const Object& object() const { return *object_; }

  // Bytes [offset, offset + bytes), which must be there; waits for those that have not come.
  absl::Status Read(void* data, std::int64_t bytes, std::int64_t offset) const;
  // Begins to fetch such bytes and returns. What is beyond the end is left out; an error is told to who reads them.
  void Prefetch(std::int64_t bytes, std::int64_t offset, When when = When::kLater) const;

 private:
  std::shared_ptr<const Object> object_;
  std::shared_ptr<BlockCache> cache_;
};

// Reads an object from its beginning to its end, with up to 32 MiB behind what was read under way: little at first, more from read to read. For one thread.
class Stream {
 public:
  explicit Stream(std::shared_ptr<const Object> object) : reader_(std::move(object)) {}

  // At least one of `bytes` bytes, which are not 0; 0: the object has ended.
  absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes);
  std::int64_t at() const { return at_; }
  const Object& object() const { return reader_.object(); }

 private:
  BlockReader reader_;
  std::int64_t at_ = 0;
  std::int64_t asked_ = 0;  // fetched, or under way, up to here
};

}  // namespace engine::storage

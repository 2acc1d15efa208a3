#include "engine/checkpoint/block_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/base/half.h"
#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kAlignment = 4096;  // of memory, offset and length with O_DIRECT
constexpr std::int64_t kHashedBytes = std::int64_t{256}
                                      << 10;  // stay in the second-level cache from copy to hash

bool SetDirect(const File& file, bool on) {
  const int flags = fcntl(file.fd(), F_GETFL);
  return flags >= 0 && fcntl(file.fd(), F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

struct BlockWriter::State {
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

  // A part of the file; all but the last are full.
  struct Block {
    AlignedMemory memory;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  File file;
  std::int64_t block_bytes = kBlockBytes;
  std::atomic<bool> direct = false;
  Hasher hasher;
  Block current;
  std::vector<std::thread> threads;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Block> full;  // that wait for a thread
  std::vector<AlignedMemory> free;
  int blocks = 0;  // that there are
  bool ends = false;
  absl::Status status;

  ~State() { Join(); }

  void Join() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      ends = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  // There are file systems that let a file be opened for it, and refuse to write past the page cache. A disk that is full is so the
  // second time, too.
  absl::Status Write(const Block& block) {
    if (direct) {
      const std::int64_t bytes = RoundUp(block.bytes, kAlignment);
      std::memset(block.memory.get() + block.bytes, 0, static_cast<std::size_t>(bytes - block.bytes));
      absl::Status written = file.WriteAt(block.memory.get(), bytes, block.offset);
      if (written.ok() || absl::IsResourceExhausted(written)) return written;
      direct = false;
      SetDirect(file, false);
    }
    return file.WriteAt(block.memory.get(), block.bytes, block.offset);
  }

  void WriteBlocks() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || !full.empty(); });
      if (full.empty()) return;
      Block block = std::move(full.front());
      full.pop_front();
      if (status.ok()) {
        lock.unlock();
        absl::Status written = Write(block);
        lock.lock();
        if (status.ok()) status = std::move(written);
      }
      free.push_back(std::move(block.memory));
      changed.notify_all();
    }
  }

  // A place for the next block, which waits for one of those under way where there are enough.
  absl::Status TakeMemory() {
    std::unique_lock<std::mutex> lock(mutex);
    if (free.empty() && blocks <= kThreads) {
      ++blocks;
      lock.unlock();
      current.memory.reset(
          static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<std::size_t>(block_bytes))));
      return current.memory != nullptr ? absl::OkStatus()
                                       : ResourceExhausted("{}: no memory for a block of {}", file.path(),
                                                           FormatBytes(block_bytes));
    }
    changed.wait(lock, [&] { return !free.empty(); });
    current.memory = std::move(free.back());
    free.pop_back();
    return status;
  }

  // Room for some more bytes at the end of the current block, and how much of it there is.
  absl::StatusOr<std::span<std::byte>> Room() {
    if (current.memory != nullptr && current.bytes == block_bytes) RETURN_IF_ERROR(PassOn());
    if (current.memory == nullptr) RETURN_IF_ERROR(TakeMemory());
    const std::int64_t left = std::min(kHashedBytes, block_bytes - current.bytes);
    return std::span(current.memory.get() + current.bytes, static_cast<std::size_t>(left));
  }

  // So many bytes of the room are filled.
  void Filled(std::span<const std::byte> bytes) {
    hasher.Update(bytes.data(), bytes.size());
    current.bytes += static_cast<std::int64_t>(bytes.size());
  }

  absl::Status PassOn() {
    const std::int64_t next = current.offset + current.bytes;
    if (threads.empty()) {
      for (int i = 0; i < kThreads; ++i) threads.emplace_back([this] { WriteBlocks(); });
    }
    {
      const std::lock_guard<std::mutex> lock(mutex);
      full.push_back(std::exchange(current, {.memory = {}, .offset = next, .bytes = 0}));
      RETURN_IF_ERROR(status);
    }
    changed.notify_all();
    return absl::OkStatus();
  }
};

BlockWriter::BlockWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlockWriter::BlockWriter(BlockWriter&&) noexcept = default;
BlockWriter& BlockWriter::operator=(BlockWriter&&) noexcept = default;
BlockWriter::~BlockWriter() = default;

absl::StatusOr<BlockWriter> BlockWriter::Create(const std::string& path, std::int64_t expected_bytes) {
  auto state = std::make_unique<State>();
  ASSIGN_OR_RETURN(state->file, CreateFile(path));
  RETURN_IF_ERROR(state->file.Reserve(expected_bytes));
  state->block_bytes = std::clamp(RoundUp(expected_bytes, kAlignment), kAlignment, kBlockBytes);
  state->direct = SetDirect(state->file, true);
  return BlockWriter(std::move(state));
}

absl::Status BlockWriter::Append(const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    ASSIGN_OR_RETURN(std::span<std::byte> room, state_->Room());
    room = room.first(std::min(room.size(), static_cast<std::size_t>(bytes)));
    std::memcpy(room.data(), from, room.size());
    state_->Filled(room);
    from += room.size();
    bytes -= static_cast<std::int64_t>(room.size());
  }
  return absl::OkStatus();
}

absl::Status BlockWriter::AppendWidened(const std::byte* data, DType dtype, std::int64_t elements) {
  ENGINE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16, "{} is not widened", Name(dtype));
  std::vector<float> wide(static_cast<std::size_t>(std::min(elements, kHashedBytes / SizeOf(DType::kF32))));
  while (elements > 0) {
    const std::span<float> part(wide.data(), std::min(wide.size(), static_cast<std::size_t>(elements)));
    (dtype == DType::kBF16 ? FloatsFromBFloat16 : FloatsFromHalf)(data, part);
    const auto count = static_cast<std::int64_t>(part.size());
    RETURN_IF_ERROR(Append(part.data(), count * SizeOf(DType::kF32)));
    data += count * SizeOf(dtype);
    elements -= count;
  }
  return absl::OkStatus();
}

std::int64_t BlockWriter::bytes() const { return state_->current.offset + state_->current.bytes; }

absl::Status BlockWriter::Finish() {
  const std::int64_t size = bytes();
  if (state_->current.bytes > 0) {
    if (state_->threads.empty()) {
      RETURN_IF_ERROR(state_->Write(state_->current));
    } else {
      RETURN_IF_ERROR(state_->PassOn());
    }
  }
  state_->Join();
  RETURN_IF_ERROR(state_->status);
  RETURN_IF_ERROR(state_->file.Resize(size));
  return state_->file.Sync();
}

std::string BlockWriter::Checksum() const { return state_->hasher.HexDigest(); }

bool BlockWriter::direct() const { return state_->direct; }

}  // namespace engine::checkpoint

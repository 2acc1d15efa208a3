#include "engine/storage/block_reader.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::storage {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{32} << 10;
constexpr std::size_t kMostBlocks = (std::size_t{256} << 20) / kBlockBytes;
constexpr std::int64_t kMostBlocksOfRequest = (std::int64_t{8} << 20) / kBlockBytes;
constexpr int kRequestsUnderWay = 16;

constexpr std::int64_t kReadAheadBytes = std::int64_t{32} << 20;       // of streams
constexpr std::int64_t kFirstStreamedBytes = std::int64_t{256} << 10;  // many look at the beginning alone
constexpr std::int64_t kStreamedBytes = std::int64_t{4} << 20;  // of a stream that are asked for at once

}  // namespace

class BlockCache {
 public:
  // The one of the process, while anyone has it.
  static std::shared_ptr<BlockCache> Shared() {
    static std::mutex mutex;
    static std::weak_ptr<BlockCache> shared;
    const std::lock_guard lock(mutex);
    std::shared_ptr<BlockCache> cache = shared.lock();
    if (cache == nullptr) shared = cache = std::make_shared<BlockCache>();
    return cache;
  }

  BlockCache() {
    for (int i = 0; i < kRequestsUnderWay; ++i) threads_.emplace_back([this] { Work(); });
  }
  // Waits for requests under way.
  ~BlockCache() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  absl::Status Read(const std::shared_ptr<const Object>& object, char* data, std::int64_t bytes,
                    std::int64_t offset) {
    std::unique_lock lock(mutex_);
    const Blocks blocks =
        Want(object, offset / kBlockBytes, CeilDiv(offset + bytes, kBlockBytes), When::kNow);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = *blocks[i];
      came_.wait(lock, [&block] { return block.is_there; });
      RETURN_IF_ERROR(block.status);
      // What is there does not change, and is held.
      lock.unlock();
      const std::int64_t begin = (offset / kBlockBytes + static_cast<std::int64_t>(i)) * kBlockBytes;
      const std::int64_t first = std::max(offset, begin);
      const std::int64_t last =
          std::min(offset + bytes, begin + static_cast<std::int64_t>(block.bytes.size()));
      std::memcpy(data + (first - offset), block.bytes.data() + (first - begin),
                  static_cast<std::size_t>(last - first));
      lock.lock();
    }
    return absl::OkStatus();
  }

  void Prefetch(const std::shared_ptr<const Object>& object, std::int64_t bytes, std::int64_t offset,
                When when) {
    const std::lock_guard lock(mutex_);
    Want(object, offset / kBlockBytes, CeilDiv(offset + bytes, kBlockBytes), when);
  }

  // Nothing of it is wanted any more.
  void Forget(const Object* object) {
    const std::lock_guard lock(mutex_);
    std::erase_if(requests_, [object](const Request& request) { return request.object.get() == object; });
    for (auto it = used_.begin(); it != used_.end();) {
      const auto here = it++;
      if (here->first != object) continue;
      blocks_.erase(*here);
      used_.erase(here);
    }
  }

 private:
  using Key = std::pair<const Object*, std::int64_t>;  // which block of which object
  struct Block {
    bool is_waited_for = false;
    bool is_there = false;  // or will never be, as `status` says
    absl::Status status;
    std::vector<char> bytes;
  };
  struct Kept {
    std::shared_ptr<Block> block;
    std::list<Key>::iterator use;
  };
  using Blocks = std::vector<std::shared_ptr<Block>>;
  // Blocks that follow one another.
  struct Request {
    std::shared_ptr<const Object> object;
    std::int64_t first = 0;
    Blocks blocks;
  };

  // Blocks [first, last); those that nobody has asked for are. Under the lock.
  Blocks Want(const std::shared_ptr<const Object>& object, std::int64_t first, std::int64_t last, When when) {
    Blocks blocks;
    std::vector<Request> missing;
    bool some_are_asked = false;
    for (std::int64_t number = first; number < last; ++number) {
      const Key key(object.get(), number);
      if (const auto found = blocks_.find(key); found != blocks_.end()) {
        used_.splice(used_.end(), used_, found->second.use);
        blocks.push_back(found->second.block);
        some_are_asked = some_are_asked || !blocks.back()->is_there;
        continue;
      }
      used_.push_back(key);
      blocks.push_back(std::make_shared<Block>());
      blocks_[key] = {blocks.back(), std::prev(used_.end())};
      if (missing.empty() ||
          missing.back().first + static_cast<std::int64_t>(missing.back().blocks.size()) != number ||
          static_cast<std::int64_t>(missing.back().blocks.size()) == kMostBlocksOfRequest)
        missing.push_back({object, number, {}});
      missing.back().blocks.push_back(blocks.back());
    }
    while (blocks_.size() > kMostBlocks) {
      blocks_.erase(used_.front());
      used_.pop_front();
    }
    if (when == When::kNow) {
      if (some_are_asked) MoveToFront(blocks);
      for (auto it = missing.rbegin(); it != missing.rend(); ++it) requests_.push_front(std::move(*it));
    } else {
      for (Request& request : missing) requests_.push_back(std::move(request));
    }
    if (!missing.empty()) wanted_.notify_all();
    return blocks;
  }

  // Requests for some of these blocks that nobody works on yet go before all others.
  void MoveToFront(const Blocks& blocks) {
    for (const std::shared_ptr<Block>& block : blocks) block->is_waited_for = true;
    std::stable_partition(requests_.begin(), requests_.end(), [](const Request& request) {
      return std::any_of(request.blocks.begin(), request.blocks.end(),
                         [](const std::shared_ptr<Block>& block) { return block->is_waited_for; });
    });
  }

  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wanted_.wait(lock, [this] { return ends_ || !requests_.empty(); });
      if (ends_) return;
      const Request request = std::move(requests_.front());
      requests_.pop_front();
      lock.unlock();
      std::vector<std::vector<char>> pieces;
      const absl::Status status = Fetch(request, &pieces);
      lock.lock();
      for (std::size_t i = 0; i < request.blocks.size(); ++i) {
        Block& block = *request.blocks[i];
        block.is_there = true;
        block.status = status;
        if (status.ok()) block.bytes = std::move(pieces[i]);
        if (!status.ok()) Drop({request.object.get(), request.first + static_cast<std::int64_t>(i)});
      }
      came_.notify_all();
    }
  }

  static absl::Status Fetch(const Request& request, std::vector<std::vector<char>>* pieces) {
    const std::int64_t begin = request.first * kBlockBytes;
    const std::int64_t end = std::min(begin + static_cast<std::int64_t>(request.blocks.size()) * kBlockBytes,
                                      request.object->size());
    std::vector<char> bytes(static_cast<std::size_t>(end - begin));
    RETURN_IF_ERROR(request.object->ReadAt(bytes.data(), end - begin, begin));
    for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
      const std::size_t last = std::min(bytes.size(), at + kBlockBytes);
      pieces->emplace_back(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                           bytes.begin() + static_cast<std::ptrdiff_t>(last));
    }
    return absl::OkStatus();
  }

  // Who wants it again asks again.
  void Drop(const Key& key) {
    const auto found = blocks_.find(key);
    if (found == blocks_.end()) return;
    used_.erase(found->second.use);
    blocks_.erase(found);
  }

  std::mutex mutex_;
  std::condition_variable wanted_;  // requests_ or ends_ has changed
  std::condition_variable came_;    // blocks
  absl::flat_hash_map<Key, Kept> blocks_;
  std::list<Key> used_;  // that of longest ago first
  std::deque<Request> requests_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

BlockReader::BlockReader(std::shared_ptr<const Object> object)
    : object_(std::move(object)), cache_(BlockCache::Shared()) {}

BlockReader::~BlockReader() {
  if (cache_ != nullptr) cache_->Forget(object_.get());
}

BlockReader::BlockReader(BlockReader&& other) noexcept = default;

BlockReader& BlockReader::operator=(BlockReader&& other) noexcept {
  std::swap(object_, other.object_);
  std::swap(cache_, other.cache_);
  return *this;
}

absl::Status BlockReader::Read(void* data, std::int64_t bytes, std::int64_t offset) const {
  if (offset < 0 || bytes < 0 || offset > object_->size() || bytes > object_->size() - offset)
    return DataLoss("{} has {} bytes, and not {} from {} on", object_->name(), object_->size(), bytes,
                    offset);
  return bytes == 0 ? absl::OkStatus() : cache_->Read(object_, static_cast<char*>(data), bytes, offset);
}

void BlockReader::Prefetch(std::int64_t bytes, std::int64_t offset, When when) const {
  bytes = std::min(bytes, object_->size() - offset);
  if (offset >= 0 && bytes > 0) cache_->Prefetch(object_, bytes, offset, when);
}

absl::StatusOr<std::size_t> Stream::Read(char* out, std::size_t bytes) {
  const std::int64_t size = object().size();
  const std::int64_t ahead = std::min(kReadAheadBytes, kFirstStreamedBytes + 2 * at_);
  while (asked_ < size && asked_ < at_ + ahead) {
    const std::int64_t more = std::clamp(asked_, kFirstStreamedBytes, kStreamedBytes);
    reader_.Prefetch(more, asked_);
    asked_ += more;
  }
  const std::int64_t some = std::min({static_cast<std::int64_t>(bytes), size - at_, kStreamedBytes});
  RETURN_IF_ERROR(reader_.Read(out, some, at_));
  at_ += some;
  return static_cast<std::size_t>(some);
}

}  // namespace engine::storage

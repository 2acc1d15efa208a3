#include "engine/plan/arena.h"

#include <algorithm>

#include "engine/base/status.h"

namespace engine::plan {

std::int64_t RangeAllocator::Allocate(std::int64_t bytes) {
  bytes = std::max(Aligned(bytes), kAlignment);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  std::int64_t offset = end_;
  if (best != free_.end()) {
    offset = best->first;
    const std::int64_t rest = best->second - bytes;
    free_.erase(best);
    if (rest > 0) free_[offset + bytes] = rest;
  } else {
    // A free range that touches the end grows into it.
    if (!free_.empty()) {
      const auto last = std::prev(free_.end());
      if (last->first + last->second == end_) {
        offset = last->first;
        free_.erase(last);
      }
    }
    end_ = offset + bytes;
  }
  used_[offset] = bytes;
  peak_ = std::max(peak_, end_);
  return offset;
}

void RangeAllocator::Free(std::int64_t offset) {
  const auto it = used_.find(offset);
  ENGINE_CHECK(it != used_.end(), "nothing is allocated at {}", offset);
  std::int64_t bytes = it->second;
  used_.erase(it);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

}  // namespace engine::plan

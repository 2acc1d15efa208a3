// What the bytes of an arena or a slot hold while the verifier walks a segment.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "engine/plan/plan.h"

namespace engine::verify {

inline constexpr std::int32_t kScratch = -2;
inline constexpr std::int32_t kBefore = -1;  // written before the segment
// What a value of a half is noted as.
constexpr std::int32_t KeyOf(std::int32_t value, plan::Half half) {
  return 2 * value + (half == plan::Half::kSecond ? 1 : 0);
}
constexpr std::int32_t ValueOfKey(std::int32_t key) { return key / 2; }
// Holds another rank's part of a value, and what was a value until its one reader had added that to it.
constexpr std::int32_t PartOf(std::int32_t key) { return -4 - key; }
inline constexpr std::int32_t kAdded = -3;

// What bytes hold, by ranges: of the arena, or of the microbatch's slot.
class Contents {
 public:
  struct Cell {
    std::int64_t end = 0;
    std::int32_t value = -1;  // KeyOf a value, or kScratch
    std::int32_t writer = kBefore;
  };

  void Write(std::int64_t begin, std::int64_t end, std::int32_t value, std::int32_t writer) {
    auto it = cells_.lower_bound(begin);
    if (it != cells_.begin()) {
      const auto before = std::prev(it);
      if (before->second.end > end) cells_[end] = before->second;
      if (before->second.end > begin) before->second.end = begin;
    }
    while (it != cells_.end() && it->first < end) {
      if (it->second.end > end) cells_[end] = it->second;
      it = cells_.erase(it);
    }
    cells_[begin] = {end, value, writer};
  }

  // Null if [begin, end) is exactly one cell that holds `value`; else the first foreign writer, or why not.
  struct Finding {
    bool ok = false;
    bool overwritten = false;
    Cell by;
  };
  Finding Holds(std::int64_t begin, std::int64_t end, std::int32_t value) const {
    auto it = cells_.upper_bound(begin);
    if (it != cells_.begin()) --it;
    Finding finding;
    for (; it != cells_.end() && it->first < end; ++it) {
      if (it->second.end <= begin) continue;
      if (it->first <= begin && it->second.end >= end && it->second.value == value)
        return {.ok = true, .by = {}};
      if (it->second.value != value && !finding.overwritten) finding = {false, true, it->second};
    }
    return finding;
  }

 private:
  std::map<std::int64_t, Cell> cells_;
};

}  // namespace engine::verify

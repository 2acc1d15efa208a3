// Offsets in the arena: persistent regions one after another, transients by lifetime.
#pragma once

#include <cstdint>
#include <map>

#include "engine/base/units.h"

namespace engine::plan {

// Every buffer starts at a multiple of this, so that vector loads and library calls are aligned.
inline constexpr std::int64_t kAlignment = 256;

constexpr std::int64_t Aligned(std::int64_t bytes) { return RoundUp(bytes, kAlignment); }

// Gives out and takes back ranges of [0, ∞) and remembers how far they reached. Best fit, lowest offset on
// ties: deterministic.
class RangeAllocator {
 public:
  std::int64_t Allocate(std::int64_t bytes);
  void Free(std::int64_t offset);
  std::int64_t peak() const { return peak_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset → bytes, below end_
  std::map<std::int64_t, std::int64_t> used_;
  std::int64_t end_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace engine::plan

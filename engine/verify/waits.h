// Conversions, and copies to and from the host, beside computation: what they read and write is theirs until something has
// waited for them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// Of one segment, whose instructions are shown to it in order.
class ConversionsUnderWay {
 public:
  explicit ConversionsUnderWay(const plan::Plan& plan) : plan_(plan) {}

  void Clear() { under_way_.clear(); }
  // Waits name conversions or copies that are under way, and what the i-th instruction reads and writes is no longer used
  // by any that still is.
  absl::Status Check(const plan::Segment& segment, std::size_t i);

 private:
  struct Conversion {
    std::int32_t index = -1;
    std::vector<plan::BufferRef> reads, writes;
  };

  absl::Status Free(const plan::Segment& segment, const plan::BufferRef& ref, bool writes) const;

  const plan::Plan& plan_;
  std::vector<Conversion> under_way_;
};

// The halves of a segment run the same instructions, and what runs once for both is over buffers or sums over
// rows. Where a segment runs one microbatch, nothing is of another half.
absl::Status VerifyHalves(std::int32_t stage, const plan::Segment& segment, bool halves);

}  // namespace engine::verify

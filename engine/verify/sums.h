// Sums of two ranks whose addition is left to the instruction that reads them: where they lie, and who adds
// the other rank's part (plan::Addition, plan::OtherTerm).
#pragma once

#include <absl/container/flat_hash_set.h>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/verify/contents.h"

namespace engine::verify {

// Of one segment, whose instructions are shown to it in order. What arena and slot hold is the caller's.
class LeftSums {
 public:
  LeftSums(const plan::Plan& plan, Contents* arena, Contents* slot)
      : plan_(plan), arena_(*arena), slot_(*slot) {}

  void Clear() { left_.clear(); }
  // All rules for the i-th instruction, before what it writes is noted.
  absl::Status Check(const plan::Segment& segment, std::size_t i);

 private:
  absl::Status Leaves(const plan::Instruction& instruction);
  absl::Status Direct(const plan::Segment& segment, std::size_t i) const;
  absl::Status Adds(const plan::Instruction& instruction, std::size_t i);
  absl::Status MayAdd(const plan::Instruction& instruction, const plan::BufferRef& input) const;
  bool IsRunOf(const plan::BufferRef& sum, const plan::BufferRef& partial) const;

  const plan::Plan& plan_;
  Contents& arena_;
  Contents& slot_;
  absl::flat_hash_set<std::int32_t> left_;  // KeyOf values that their reader must still add to
};

}  // namespace engine::verify

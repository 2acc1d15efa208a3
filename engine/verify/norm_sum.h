// The norm of a stage's gradients: from the squares of buckets to the factor that clips them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/verify/bucket_sums.h"

namespace engine::verify {

// Shows that loss and norm count every logical number once: each bucket's sums are counted by one stage and, where
// ranks repeat them, on the first of these; and both are summed over the world once, before the clip factor is
// computed of them once. The update's instructions are shown to it in order.
class NormSum {
 public:
  // `sums` follows the same instructions and outlives this.
  NormSum(const plan::Plan& plan, std::int32_t stage, const BucketSums& sums)
      : plan_(plan),
        stage_(plan.stages[static_cast<std::size_t>(stage)]),
        sums_(sums),
        counted_(stage_.buckets.size(), 0) {}

  // The instruction adds a bucket's squares to the norm.
  absl::Status Count(const plan::Instruction& instruction);
  // It sums loss and norm over ranks.
  absl::Status Reduce(const plan::Instruction& instruction);
  // It computes the clip factor.
  absl::Status Clip(const plan::Instruction& instruction);

  bool Counts(std::size_t bucket) const { return counted_[bucket] > 0; }
  bool Clipped() const { return clipped_; }

 private:
  const plan::Plan& plan_;
  const plan::StagePlan& stage_;
  const BucketSums& sums_;
  std::vector<int> counted_;  // by bucket: how often
  int summed_ = 0;
  bool clipped_ = false;
};

}  // namespace engine::verify

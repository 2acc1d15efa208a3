// How far the gradients of a stage's buckets are summed over ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// Shows that the gradients of each bucket are summed exactly once over every axis on which they are partial, tied
// ones once over the holders of their copies, before anything reads them. The exchanges that sum them, and what reads
// them, are shown to it in the order in which the stage runs them.
class BucketSums {
 public:
  BucketSums(const plan::Plan& plan, std::int32_t stage)
      : plan_(plan), index_(stage), stage_(plan.stages[static_cast<std::size_t>(stage)]) {}

  // Derives of every bucket what there is to sum. An error if its items differ in that, or if a gradient is split
  // otherwise than its parameter. Comes first.
  absl::Status Enter();

  // The exchange sums gradients over axes over which they still have to be summed.
  absl::Status Reduce(const plan::Instruction& instruction);
  // The bucket was reduced behind the last backward pass: the update begins when all of it has arrived.
  void ReducedBehindPass(std::size_t bucket);
  bool IsReducedBehindPass(std::size_t bucket) const { return sums_[bucket].early; }

  // If the instruction waits for a bucket, the bucket's reduction is under way.
  absl::Status Join(const plan::Instruction& instruction);
  bool AnyUnderWay() const;

  // Gradients of this bucket, whole sums: all of them, or this rank's shard.
  absl::Status ReadsSum(const plan::BufferRef& ref, std::size_t bucket) const;

  // The axes along which ranks have the same sums of the bucket.
  plan::AxisSet RepeatedOver(std::size_t bucket) const;

 private:
  struct Sum {
    plan::AxisSet partial;  // axes over which the gradient is still to be summed
    plan::AxisSet copies;   // active axes on which the parameters are repeated
    bool tie = false;       // still to be summed over the holders of its copies
    bool scattered = false;
    bool early = false;      // reduced behind a backward pass
    bool under_way = false;  // its reduction, until something waits for it
  };

  absl::Status EnterBucket(std::size_t b);
  absl::StatusOr<plan::AxisSet> NotSplit(const plan::PlanParameter& parameter, std::size_t b) const;
  absl::Status SumTied(const plan::Instruction& instruction, std::size_t b);

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  std::vector<Sum> sums_;  // by bucket
};

}  // namespace engine::verify

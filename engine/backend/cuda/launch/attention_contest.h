// Attention's kernels against each other, on the same operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/profile/scratch_attention.h"

namespace engine::backend::cuda {

// What of the device decides which kernels carry attention out.
CudaChip ChipOf(const Device& device);

struct AttentionEntrant {
  AttentionWay way = {};
  Device* device =
      nullptr;  // whether it is deterministic says which of its backward passes cuDNN enters with
};

struct AttentionTime {
  std::string why_not;             // in words; empty: it was timed
  double milliseconds = 0;         // of one execution, a median
  std::int64_t scratch_bytes = 0;  // that the kernels ask a plan for
};

struct AttentionTiming {
  int rounds = 5;  // of which the median is taken; in each, all entrants run in turn
  float round_ms = 40;
  std::vector<std::int64_t> documents =
      {};  // lengths of a sample's, where the op has spans; empty: it is one
};

// Times each entrant's execution of the instruction of `args`, one of the four attention ops, whose tensors are of the views'
// types. Their data are not touched: all entrants, which are of one GPU, work on tensors of normal numbers in lent memory, or where
// it is too small in memory that is allocated for that time, queries where their extent says. Errors: ResourceExhausted, no memory
// for the tensors; the GPU failed.
absl::StatusOr<std::vector<AttentionTime>> TimeAttention(const LaunchArgs& args,
                                                         std::span<const AttentionEntrant> entrants,
                                                         const AttentionTiming& timing = {},
                                                         std::span<std::byte> lent = {});

}  // namespace engine::backend::cuda

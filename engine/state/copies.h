// Weights that several ranks hold, of data-parallel copies for one, are equal to the bit after every update: the same
// program made them of the same gradients. Where they are not, a machine has stored or computed something wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/executor/executor.h"
#include "engine/plan/plan.h"

namespace engine::state {

// The hash of a piece of the weights that a rank holds.
struct PieceHash {
  std::string piece;  // the same on all ranks that hold it: "layers.0.mlp.up.weight [0,16)×[0,32)"
  std::string hash;   // XXH3-128 of its bytes
};

struct RankHashes {
  std::int64_t rank = 0;
  std::string host;
  std::vector<PieceHash> pieces;
};

// Of all weights of this rank, and of their fp32 masters. None of a parameter of which each rank keeps a part of its own:
// nobody has a copy. No iteration is under way.
absl::StatusOr<std::vector<PieceHash>> HashWeights(const plan::Plan& plan, executor::RankExecutor& executor);

// Error (Internal, so that the run may be tried again): copies of a piece differ. It names the ranks that differ from most of
// its holders; where there is no majority, as of two, all holders.
absl::Status CompareCopies(const std::vector<RankHashes>& ranks);

}  // namespace engine::state

// The order in which two microbatches take turns in a segment, so that the exchange of one runs behind the
// computation of the other.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/estimates.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Where both halves' values lie one behind the other, each `bytes` long.
struct BesidePlace {
  enum class Region : std::uint8_t { kSlot, kTransients, kBuffers };
  Region region = Region::kTransients;
  std::int64_t offset = 0;  // of the first half's
  std::int64_t stride = 0;  // from it to the second's
  std::int64_t bytes = 0;
  bool Overlaps(const BesidePlace& other) const {
    return region == other.region && offset < other.offset + other.stride + other.bytes &&
           other.offset < offset + stride + bytes;
  }
};

// An instruction of one microbatch, as it takes turns.
struct TurnItem {
  const plan::Instruction* instruction = nullptr;
  bool both = false;  // runs once for both halves
  double seconds = 0;
  // What of its inputs and of its outputs lies beside the other half's.
  std::vector<BesidePlace> reads = {}, writes = {};
};

// Whose instruction comes next, and which of the items it is.
struct HalfTurn {
  plan::Half half = plan::Half::kFirst;
  std::size_t item = 0;
  friend bool operator==(const HalfTurn&, const HalfTurn&) = default;
};

struct Interleaving {
  // Empty where the halves wait for each other: there is no such order.
  std::vector<HalfTurn> order;
  double compute_s = 0;  // Σ of computation of both halves
  double exposed_s = 0;  // that computation waits for exchange
};

// Plays the items over a stream of computation and two of exchange. Whenever computation is free, the half
// goes on that can, and of two the one that sooner comes to an exchange: so short pieces between two
// exchanges (a norm between reduce_scatter and all_gather) slip into the middle of the other half's products.
// The second half never gets ahead of the first, so that sums over microbatches are made in their order. What
// is made of both (weight gradients) waits until both have passed it, and runs when neither can go on, or
// where one is to overwrite what it reads.
Interleaving Interleave(const std::vector<TurnItem>& items);

}  // namespace engine::compile

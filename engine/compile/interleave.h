// The order in which two microbatches take turns in a segment, so that the exchange of one runs behind the
// computation of the other.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/estimates.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct Interleaving {
  // Lanes: whose next instruction it is. Empty where these wait for each other: there is no such order.
  std::vector<std::uint8_t> order;
  double compute_s = 0;  // Σ of computation of both lanes
  double exposed_s = 0;  // that computation waits for exchange
};

// Plays the segment over a stream of computation and two of exchange. Whenever computation is free, the lane
// goes on that can, and of two the one that sooner comes to an exchange: so short pieces between two
// exchanges (a norm between reduce_scatter and all_gather) slip into the middle of the other lane's products.
// The second lane never gets ahead of the first, so that sums over microbatches are made in their order. What
// is made of both (weight gradients) waits until both have passed it, and runs when neither can go on, or
// where one is to overwrite what it reads.
Interleaving Interleave(const plan::Segment& segment, const Rates& rates);

}  // namespace engine::compile

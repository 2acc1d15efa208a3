// The halves pass, a late rewrite: the finished list of what one microbatch runs → the list of what two run in
// turns, so that the exchange of one is hidden behind the computation of the other (docs/halves.md).
#pragma once

#include "engine/compile/draft.h"
#include "engine/compile/interleave.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct HalvesInputs {
  const plan::Plan* plan = nullptr;
  const plan::DeviceProfile* profile = nullptr;
  const HalfStorage* storage = nullptr;
  // Values of slots that no later segment reads, as PlaceInputs::dying.
  const Storage* dying = nullptr;
  std::int64_t transient_base = 0;  // offset in the arena of transient byte 0
  Rates rates;
};

struct Halved {
  DraftSegment segment;
  // Where the halves' values are that lie one behind the other, beside those of HalvesInputs::storage.
  HalfStorage beside;
  std::int64_t beside_bytes = 0;  // of the transients among them, from transient_base on
  bool stuck = false;             // the halves would wait for each other: there is no such order
};

// Takes conversions off the computation's stream. What sums over rows runs once for both halves, where it finds
// their values one behind the other, and so does what exchanges buckets. Each instruction names in `waits` what
// its half has exchanged since it computed last.
Halved Halve(const HalvesInputs& inputs, const DraftSegment& segment);

}  // namespace engine::compile

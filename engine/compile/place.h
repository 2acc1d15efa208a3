// The placement pass, the last one: instructions without addresses → instructions with transients placed by
// lifetime, in the order in which they run.
#pragma once

#include "engine/compile/draft.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct PlaceInputs {
  const plan::Plan* plan = nullptr;
  const HalfStorage* storage = nullptr;
  // Values of slots that no later segment reads: an op that may work in place may take their bytes.
  const Storage* dying = nullptr;
  std::int32_t keep = -1;           // a value that must outlive the segment's last instruction
  std::int64_t transient_base = 0;  // offset in the arena of transient byte 0
};

// *bytes: how far the transients reach. *kept: where PlaceInputs::keep lies.
plan::Segment Place(const PlaceInputs& inputs, DraftSegment segment, std::int64_t* bytes,
                    plan::BufferRef* kept = nullptr);

}  // namespace engine::compile

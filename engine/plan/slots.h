// The slot pass: what a chunk keeps of a microbatch from pass to pass, and where in the microbatch's slot.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/segment.h"
#include "engine/plan/stage.h"

namespace engine::plan {

// Values of the graph that are fed or received for the chunk's forward pass, or that a pass reads and an
// earlier one made or received.
std::vector<std::int32_t> SavedValues(const CutGraph& graph, std::int32_t chunk);

struct SlotLayout {
  Storage values;
  std::vector<BufferRef> inputs;  // those that are fed, in order
  std::int64_t bytes = 0;
  Storage dying;  // of the values, those whose bytes the backward pass may take over where they die
};

// What the backward pass makes for the weights pass lies where saved values have died by then, as far as
// there is room.
SlotLayout LayOutSlot(const Plan& plan, const CutGraph& graph, std::int32_t chunk);

}  // namespace engine::plan

// The slot pass: what a chunk keeps of a microbatch from pass to pass, and where in the microbatch's slot.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/draft.h"
#include "engine/compile/stage.h"

namespace engine::compile {

// Values of the graph that are fed or received for the chunk's forward pass, or that a pass reads and an
// earlier one made or received.
std::vector<std::int32_t> SavedValues(const CutGraph& graph, std::int32_t chunk);

struct SlotLayout {
  HalfStorage values;                   // of halves one behind the other, in two slots that lie so too
  std::vector<plan::BufferRef> inputs;  // those that are fed, in order, half by half
  std::int64_t bytes = 0;
  Storage dying;  // of the values, those whose bytes the backward pass may take over where they die
};

// What the backward pass makes for the weights pass lies where saved values have died by then, as far as
// there is room.
SlotLayout LayOutSlot(const plan::Plan& plan, const CutGraph& graph, std::int32_t chunk);

}  // namespace engine::compile

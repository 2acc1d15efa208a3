// The slot pass: what a chunk keeps of a microbatch from pass to pass, and where in the microbatch's slot.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/draft.h"
#include "engine/compile/offload.h"
#include "engine/compile/stage.h"

namespace engine::compile {

// Values of the graph that are fed or received for the chunk's forward pass, or that a pass reads and an
// earlier one made or received.
std::vector<std::int32_t> SavedValues(const CutGraph& graph, std::int32_t chunk);

struct SlotLayout {
  HalfStorage values;                   // of halves one behind the other, in two slots that lie so too
  std::vector<plan::BufferRef> inputs;  // those that are fed, in order, half by half
  std::int64_t bytes = 0;
  Storage dying;        // of the values, those whose bytes the backward pass may take over where they die
  HostedValues hosted;  // of the values, those that wait in the host's memory
};

// What the backward pass makes for the weights pass lies where saved values have died by then, as far as
// there is room. What waits in the host's memory, of so many layers, shares its place with its successor.
SlotLayout LayOutSlot(const plan::Plan& plan, const CutGraph& graph, std::int32_t chunk,
                      std::int64_t hosted_layers);

}  // namespace engine::compile

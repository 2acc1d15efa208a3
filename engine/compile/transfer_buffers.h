// The pipeline's buffers of a stage, and what all of a chunk's values lie in.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>

#include "engine/compile/draft.h"
#include "engine/compile/program.h"
#include "engine/compile/slots.h"
#include "engine/compile/stage.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

using SlotsByChunk = absl::flat_hash_map<std::int32_t, SlotLayout>;

// Places one graph's buffers, those of the halves one behind the other; *item: where their bytes are counted. Values
// that a slot of `slots` keeps are received there and sent from there; what a chunk relays is sent from where it was
// received.
TransferBuffers PlaceTransfers(const plan::Plan& plan, const CutGraph& graph, std::int64_t halves,
                               const SlotsByChunk& slots, UnfinishedStage* stage, std::int64_t* item);

// *storage: gets the buffers on the chunk's borders. Of the second half only where there are two.
void AddTransfers(const plan::Plan& plan, const TransferBuffers& buffers, std::int32_t chunk,
                  std::int64_t halves, HalfStorage* storage);

}  // namespace engine::compile

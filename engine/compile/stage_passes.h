// The training passes of a chunk: what a microbatch runs there, with addresses.
#pragma once

#include <cstddef>

#include "engine/compile/persistent.h"
#include "engine/compile/stage.h"
#include "engine/compile/transfer_buffers.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct PassesInputs {
  const StageInputs* stage = nullptr;
  const plan::Plan* plan = nullptr;
  const Persistent* persistent = nullptr;
  const SlotsByChunk* slots = nullptr;
  const TransferBuffers* buffers = nullptr;
};

// Adds the segments of one chunk's passes, of a microbatch or of both halves in turns, and sets Chunk::passes; moves
// StagePlan::pass_bytes to how far their transients reach at most. `chunk`: of StagePlan::chunks. Whether halves find
// an order in which to take turns, as BuildStage.
bool BuildPasses(const PassesInputs& inputs, std::size_t chunk, UnfinishedStage* stage);

}  // namespace engine::compile

// The program pass: turns of a schedule → steps, with sends, receives and the waits between streams.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"

namespace engine::compile {

// By half; the second is not used where a step runs one microbatch.
using HalfBuffers = std::array<plan::BufferRef, 2>;

// Pipeline buffers of one stage for one program, by transfer.
struct TransferBuffers {
  absl::flat_hash_map<std::int32_t, HalfBuffers> send;
  absl::flat_hash_map<std::int32_t, HalfBuffers>
      receive;  // in_slot where the value is kept for the backward pass
};

struct ProgramInputs {
  const plan::Plan* plan = nullptr;
  const plan::StagePlan* stage = nullptr;
  const TransferBuffers* buffers = nullptr;
  plan::FormId form = plan::kTrainForm;  // whose first and last segment run before and behind the turns
};

// A turn's microbatch is cut into Plan::halves, which one step runs. Slots: a forward takes the lowest free slot of its chunk, the last pass of the microbatch gives it back.
plan::Program UnrollProgram(const ProgramInputs& inputs, const std::vector<plan::Turn>& turns);

}  // namespace engine::compile

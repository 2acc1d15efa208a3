// The selection pass: the local nodes of one chunk and phase → instructions, without addresses. Which kernel or
// conversion, on which stream, who adds up a sum, what overwrites a gradient instead of adding to it.
#pragma once

#include <absl/container/flat_hash_set.h>

#include <string>
#include <vector>

#include "engine/compile/draft.h"
#include "engine/compile/placements.h"
#include "engine/plan/plan.h"

namespace engine::compile {

struct SelectInputs {
  const plan::Plan* plan = nullptr;
  const LocalGraph* graph = nullptr;
  std::int32_t base = 0;  // plan value of graph value 0
  const std::vector<std::int32_t>* nodes = nullptr;
  const Storage* storage = nullptr;
  const plan::DeviceProfile* profile = nullptr;
  bool values_die = false;    // values of slots, which no later segment reads (PlaceInputs::dying)
  std::int32_t keep = -1;     // a value that must outlive the segment's last instruction
  plan::AxisSet pushed = {};  // conversions along these are pushed
  plan::Addition addition = plan::Addition::kByExchange;  // of sums, as far down as that goes
  // Gradients in a buffer that others take too: each microbatch overwrites them.
  const absl::flat_hash_set<std::int32_t>* in_turns = nullptr;
  // Gradients to which another segment of the stage adds before this one does, in each microbatch.
  const absl::flat_hash_set<std::int32_t>* summed = nullptr;
};

DraftSegment Select(const SelectInputs& inputs, std::string name, std::int32_t chunk);

}  // namespace engine::compile

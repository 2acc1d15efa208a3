// The segment pass: the local nodes of one chunk and phase → instructions, with transients placed by
// lifetime.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <string>
#include <vector>

#include "engine/compile/placements.h"
#include "engine/plan/arena.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Places of the values that outlive a segment: parameters, gradients, the loss, slots, pipeline buffers. By
// LocalValue of the plan.
using Storage = absl::flat_hash_map<std::int32_t, plan::BufferRef>;

struct SegmentInputs {
  const plan::Plan* plan = nullptr;
  const LocalGraph* graph = nullptr;
  std::int32_t base = 0;  // plan value of graph value 0
  const std::vector<std::int32_t>* nodes = nullptr;
  const Storage* storage = nullptr;
  std::int64_t transient_base = 0;  // offset in the arena of transient byte 0
  const plan::DeviceProfile* profile = nullptr;
  // Values of slots that no later segment reads: an op that may work in place may take their bytes.
  const Storage* dying = nullptr;
  std::int32_t keep = -1;  // a value that must outlive the segment's last instruction
  bool in_lane = false;    // two microbatches run the segment at once: transients in lanes, exchange beside
  plan::AxisSet pushed = {};  // conversions along these are pushed
  bool direct = false;        // or read by the next instruction, where it can (Instruction::direct)
  // Gradients in a buffer that others take too: each microbatch overwrites them.
  const absl::flat_hash_set<std::int32_t>* in_turns = nullptr;
  // Gradients to which another segment of the stage adds before this one does, in each microbatch.
  const absl::flat_hash_set<std::int32_t>* summed = nullptr;
};

// How far the transients reach, and those of both lanes that lie side by side: the offsets of these count
// from 0 (ShiftJoint).
struct TransientBytes {
  std::int64_t own = 0;
  std::int64_t joint = 0;
};

plan::Segment BuildSegment(const SegmentInputs& inputs, std::string name, std::int32_t chunk,
                           TransientBytes* bytes, plan::BufferRef* kept = nullptr);

// Puts the transients that lie side by side where there is room for them.
void ShiftJoint(std::int64_t offset, plan::Segment* segment);

}  // namespace engine::compile

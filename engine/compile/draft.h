// What a pass of a microbatch runs, before addresses are given: made by select.h, extended by flat_exchange.h,
// placed by place.h.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace engine::compile {

// Places of the values that outlive a segment: parameters, gradients, the loss, slots, pipeline buffers. By
// LocalValue of the plan.
using Storage = absl::flat_hash_map<std::int32_t, plan::BufferRef>;
// Those of each half. Where a segment runs one microbatch, all is the first's.
struct HalfStorage {
  Storage first, second;
  const Storage& of(plan::Half half) const { return half == plan::Half::kSecond ? second : first; }
};

// An instruction whose references to values name these and have no addresses yet. References to flat buffers
// (BufferRef::value −1) are complete.
struct Draft {
  plan::Instruction instruction;
  std::int64_t scratch_bytes = 0;  // that Instruction::scratch will have
};

struct DraftSegment {
  std::string name;
  std::int32_t chunk = -1;
  std::vector<Draft> drafts;
  // Transients that are made at the place of another value, into which their one reader turns them in place.
  absl::flat_hash_map<std::int32_t, std::int32_t> made_at;
  bool halves = false;  // as Segment::halves
  double flops = 0;     // as Segment::flops
  double product_flops = 0;
};

// A reference to a value that has no address yet.
inline plan::BufferRef Unplaced(const plan::Plan& plan, std::int32_t value) {
  const plan::LocalValue& of = plan.values[static_cast<std::size_t>(value)];
  return {.value = value, .elements = of.local.elements(), .dtype = of.dtype};
}

// Whether it is over flat buffers alone.
inline bool IsFlat(const plan::Instruction& instruction) {
  return instruction.op() == nullptr && instruction.AsConversion() == nullptr &&
         instruction.AsHostCopy() == nullptr;
}

// The input whose bytes output 0 may take over where nothing reads it afterwards, or −1.
inline std::int32_t InPlaceInput(const plan::Plan& plan, const plan::Instruction& instruction) {
  const graph::OpDef* op = instruction.op();
  if (op == nullptr || op->in_place_input < 0) return -1;
  const std::int32_t value = instruction.inputs[static_cast<std::size_t>(op->in_place_input)].value;
  const auto bytes = [&](std::int32_t v) { return plan.values[static_cast<std::size_t>(v)].local_bytes(); };
  const auto times = std::count_if(instruction.inputs.begin(), instruction.inputs.end(),
                                   [&](const plan::BufferRef& input) { return input.value == value; });
  if (times != 1 || bytes(value) != bytes(instruction.outputs[0].value)) return -1;
  // Where the other rank reads, nothing is overwritten.
  return instruction.direct() && instruction.AddedInput() == op->in_place_input ? -1 : value;
}

}  // namespace engine::compile

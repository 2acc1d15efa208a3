#include "engine/verify/waits.h"

#include <algorithm>

#include "engine/verify/text.h"

namespace engine::verify {

absl::Status ConversionsUnderWay::Free(const plan::Segment& segment, const plan::BufferRef& ref,
                                       bool writes) const {
  if (ref.elements == 0) return absl::OkStatus();
  for (const Conversion& conversion : under_way_) {
    const auto used = [&](const std::vector<plan::BufferRef>& refs) {
      return std::any_of(refs.begin(), refs.end(),
                         [&](const plan::BufferRef& other) { return Overlap(plan_, ref, other); });
    };
    if (!used(conversion.writes) && !(writes && used(conversion.reads))) continue;
    return Internal("{} {} at {}{}, which #{} {} still uses: it does not wait for that",
                    writes ? "writes" : "reads", ref.value < 0 ? "its scratch" : NameOf(plan_, ref.value),
                    ref.in_slot ? "slot+" : "", ref.offset, conversion.index,
                    segment.instructions[static_cast<size_t>(conversion.index)].name);
  }
  return absl::OkStatus();
}

absl::Status ConversionsUnderWay::Check(const plan::Segment& segment, size_t i) {
  const plan::Instruction& instruction = segment.instructions[i];
  for (std::int32_t wait : instruction.waits) {
    const auto it = std::find_if(under_way_.begin(), under_way_.end(),
                                 [&](const Conversion& conversion) { return conversion.index == wait; });
    if (it == under_way_.end()) return Internal("waits for #{}, which is no conversion under way", wait);
    under_way_.erase(it);
  }
  for (const plan::BufferRef& input : instruction.inputs) RETURN_IF_ERROR(Free(segment, input, false));
  for (const plan::BufferRef& output : instruction.outputs) RETURN_IF_ERROR(Free(segment, output, true));
  RETURN_IF_ERROR(Free(segment, instruction.scratch, true));
  if (const plan::Kernel* kernel = instruction.AsKernel(); kernel != nullptr && kernel->adds)
    RETURN_IF_ERROR(Free(segment, kernel->adds->place, false));
  const bool copies = instruction.AsHostCopy() != nullptr;
  if (!(instruction.AsConversion() != nullptr || copies) || !plan::IsBehind(instruction.stream))
    return absl::OkStatus();
  Conversion conversion{
      .index = static_cast<std::int32_t>(i), .reads = instruction.inputs, .writes = instruction.outputs};
  if (instruction.scratch.elements > 0) conversion.writes.push_back(instruction.scratch);
  under_way_.push_back(std::move(conversion));
  return absl::OkStatus();
}

absl::Status VerifyHalves(std::int32_t stage, const plan::Segment& segment, bool halves) {
  const auto name = [&](size_t i) { return InstructionName(stage, segment, i); };
  if (segment.halves != halves) {
    return Internal("stage {} {}: runs {}, the plan cuts microbatches into {}", stage, segment.name,
                    segment.halves ? "two halves" : "whole microbatches", halves ? "halves" : "nothing");
  }
  std::vector<size_t> first, second;
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const plan::Instruction& instruction = segment.instructions[i];
    // The end of a segment waits for the last one under way of each half, which has to be of one stream.
    if (halves && instruction.AsHostCopy() != nullptr)
      return Internal("{} copies to or from the host, in halves", name(i));
    if (instruction.half == plan::Half::kBoth) {
      const bool sums = instruction.op() != nullptr && instruction.op()->sums_rows;
      const bool buffers = instruction.op() == nullptr && instruction.AsConversion() == nullptr &&
                           instruction.AsHostCopy() == nullptr;
      if (!halves || !(sums || buffers))
        return Internal("{} is not a sum over the rows of both halves", name(i));
      continue;
    }
    if (instruction.half == plan::Half::kSecond && !halves)
      return Internal("{} is of a second half", name(i));
    (instruction.half == plan::Half::kFirst ? first : second).push_back(i);
  }
  if (!halves) return absl::OkStatus();
  for (size_t k = 0; k < std::max(first.size(), second.size()); ++k) {
    if (k >= first.size() || k >= second.size())
      return Internal("{} is of one half alone", name(k >= first.size() ? second[k] : first[k]));
    const plan::Instruction& a = segment.instructions[first[k]];
    const plan::Instruction& b = segment.instructions[second[k]];
    if (a.name == b.name && a.kernel() == b.kernel()) continue;
    return Internal("{} of the first half is {} of the second", name(first[k]), name(second[k]));
  }
  return absl::OkStatus();
}

}  // namespace engine::verify

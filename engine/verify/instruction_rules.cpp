#include "engine/verify/instruction_rules.h"

#include "engine/graph/op.h"
#include "engine/verify/text.h"

namespace engine::verify {
namespace {

absl::Status Clash(const plan::Plan& plan, const plan::BufferRef& a, const plan::BufferRef& b) {
  return Internal("{} at {}{} overlaps {} at {}{}", NameOrScratch(plan, a), a.in_slot ? "slot+" : "",
                  a.offset, NameOrScratch(plan, b), b.in_slot ? "slot+" : "", b.offset);
}

absl::Status OutputsApart(const plan::Plan& plan, const plan::Instruction& instruction) {
  for (size_t k = 0; k < instruction.outputs.size(); ++k) {
    const plan::BufferRef& output = instruction.outputs[k];
    for (size_t i = 0; i < instruction.inputs.size(); ++i) {
      if (!Overlap(plan, output, instruction.inputs[i])) continue;
      if (instruction.LeavesAddition()) continue;  // it lies in the input: LeftSums
      const bool same_place =
          output.offset == instruction.inputs[i].offset && output.bytes() == instruction.inputs[i].bytes();
      const bool takes_over =
          k == 0 && instruction.op() != nullptr && instruction.op()->in_place_input == static_cast<int>(i);
      const bool moves_state =
          instruction.op() != nullptr && ((instruction.op()->moves >> k) & 1U) != 0 && output.value >= 0 &&
          output.value == instruction.inputs[i].value &&
          plan.values[static_cast<size_t>(output.value)].kind == graph::ValueKind::kState;
      if (!same_place || !(takes_over || moves_state)) return Clash(plan, output, instruction.inputs[i]);
    }
    for (size_t other = 0; other < k; ++other) {
      if (Overlap(plan, output, instruction.outputs[other]))
        return Clash(plan, output, instruction.outputs[other]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status HasItsSize(const plan::Plan& plan, const plan::BufferRef& ref, std::int64_t times) {
  if (ref.value < 0) return Internal("takes a buffer that is no tensor");
  const plan::LocalValue& value = ValueOf(plan, ref);
  if (ref.elements == times * value.local.elements() && ref.dtype == value.dtype) return absl::OkStatus();
  return Internal("{} is {}{} on a rank, its buffer {}[{}]", value.name, Name(value.dtype),
                  value.local.ToString(), Name(ref.dtype), ref.elements);
}

absl::Status OnlySumsOfBoth(const plan::Plan& plan, const plan::Instruction& instruction) {
  if (instruction.half != plan::Half::kBoth) return absl::OkStatus();
  for (const plan::BufferRef& output : instruction.outputs) {
    if (ValueOf(plan, output).kind != graph::ValueKind::kAccumulator)
      return Internal("makes {} of both halves, which is no sum", NameOf(plan, output.value));
  }
  return absl::OkStatus();
}

absl::Status OnItsStream(const plan::Instruction& instruction, bool halves) {
  const bool exchanges = instruction.Exchanges();
  const bool copies = instruction.AsHostCopy() != nullptr;
  const std::int32_t beside = exchanges && halves ? plan::kExchangeStream : plan::kComputeStream;
  const std::int32_t wanted = copies ? plan::kHostStream : beside;
  if (instruction.stream != wanted) return Internal("is on stream {}, not {}", instruction.stream, wanted);
  if (instruction.push() && !exchanges) return Internal("pushes nothing");
  return absl::OkStatus();
}

absl::Status Apart(const plan::Plan& plan, const plan::Instruction& instruction) {
  RETURN_IF_ERROR(OutputsApart(plan, instruction));
  if (instruction.scratch.elements == 0) return absl::OkStatus();
  for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
    for (const plan::BufferRef& ref : *refs) {
      if (Overlap(plan, instruction.scratch, ref)) return Clash(plan, instruction.scratch, ref);
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify

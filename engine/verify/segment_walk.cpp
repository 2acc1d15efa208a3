#include "engine/verify/segment_walk.h"

#include "engine/graph/op.h"
#include "engine/verify/instruction_rules.h"
#include "engine/verify/text.h"

namespace engine::verify {

using graph::ValueKind;
using plan::Half;

namespace {

bool HasOutput(const plan::Instruction& instruction, std::int32_t value) {
  for (const plan::BufferRef& output : instruction.outputs) {
    if (output.value == value) return true;
  }
  return false;
}

}  // namespace

absl::Status SegmentWalk::Fill(const plan::Chunk& chunk, const plan::BufferRef& ref, Half half) {
  RETURN_IF_ERROR(HasItsSize(plan_, ref, 1));
  if (ref.in_slot && (ref.offset < 0 || End(ref) > SlotBytes(plan_, chunk))) {
    return Internal("stage {} chunk {}: {} is put at slot+[{}, {}), but a slot has {} bytes", index_,
                    chunk.index, NameOf(plan_, ref.value), ref.offset, End(ref), SlotBytes(plan_, chunk));
  }
  (ref.in_slot ? slot_ : arena_).Write(ref.offset, End(ref), KeyOf(ref.value, half), kBefore);
  return absl::OkStatus();
}

absl::Status SegmentWalk::Walk(const plan::Segment& segment, std::int64_t slot_bytes) {
  phase_ = stage_arena_.form() == plan::kTrainForm ? Phase::kTraining : Phase::kEvaluation;
  RETURN_IF_ERROR(VerifyHalves(index_, segment, Halves()));
  sums_.Clear();
  under_way_.Clear();
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    RETURN_IF_ERROR(Step(segment, i, slot_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::int32_t>> SegmentWalk::Prepare(const plan::Segment& segment) {
  phase_ = Phase::kPreparing;
  std::vector<std::int32_t> made;
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (segment.instructions[i].op() == nullptr) continue;
    RETURN_IF_ERROR(Step(segment, i, 0));
    for (const plan::BufferRef& output : segment.instructions[i].outputs) made.push_back(output.value);
  }
  return made;
}

absl::Status SegmentWalk::Find(const plan::BufferRef& ref, std::int32_t key, const plan::Segment& segment,
                               const std::string& reader) const {
  const Contents::Finding finding = (ref.in_slot ? slot_ : arena_).Holds(ref.offset, End(ref), key);
  const std::int32_t value = ValueOfKey(key);
  if (finding.ok) return absl::OkStatus();
  if (!finding.overwritten) {
    return Internal("{} reads {} at {}{} before it is written", reader, NameOf(plan_, value),
                    ref.in_slot ? "slot+" : "", ref.offset);
  }
  const std::string by =
      finding.by.writer == kBefore
          ? NameOf(plan_, ValueOfKey(finding.by.value))
          : fmt::format("{} #{} {}", segment.name, finding.by.writer, WrittenBy(segment, finding.by));
  return Internal("{} reads {} at {}{}, whose bytes hold what {} left", reader, NameOf(plan_, value),
                  ref.in_slot ? "slot+" : "", ref.offset, by);
}

std::string SegmentWalk::WrittenBy(const plan::Segment& segment, const Contents::Cell& cell) const {
  // A slot's cells may be an earlier segment's; its instruction is then not in this one.
  const size_t writer = static_cast<size_t>(cell.writer);
  if (cell.value == kAdded) return "(the sum that it has read)";
  if (cell.value < 0) return "(scratch)";
  return writer < segment.instructions.size() &&
                 HasOutput(segment.instructions[writer], ValueOfKey(cell.value))
             ? segment.instructions[writer].name
             : NameOf(plan_, ValueOfKey(cell.value));
}

absl::Status SegmentWalk::Step(const plan::Segment& segment, size_t i, std::int64_t slot_bytes) {
  const plan::Instruction& instruction = segment.instructions[i];
  const auto name = [&] { return InstructionName(index_, segment, i); };
  if (instruction.IsBucketExchange()) return absl::OkStatus();  // of buckets: VerifyGradients, VerifyShards
  const bool moves = instruction.kernel() == "copy" || instruction.kernel() == "add_shard";
  if (moves && instruction.op() == nullptr && places_.AnyTakesTurns())
    return absl::OkStatus();  // VerifyShards
  if (const auto status = OnItsStream(instruction, Halves()); !status.ok())
    return WithContext(status, name());
  RETURN_IF_ERROR(Reads(segment, i));
  for (const auto& status : {OnlySumsOfBoth(plan_, instruction), sums_.Check(segment, i),
                             under_way_.Check(segment, i), Apart(plan_, instruction)}) {
    if (!status.ok()) return WithContext(status, name());
  }
  for (const auto& status :
       {CopiesHost(segment, i), Writes(instruction, static_cast<std::int32_t>(i), slot_bytes)}) {
    if (!status.ok()) return WithContext(status, name());
  }
  return absl::OkStatus();
}

// A copy to the host stays within what is the microbatch's there; one from it finds there what it brings back.
absl::Status SegmentWalk::CopiesHost(const plan::Segment& segment, size_t i) {
  const plan::Instruction& instruction = segment.instructions[i];
  const plan::HostCopy* copy = instruction.AsHostCopy();
  if (copy == nullptr) return absl::OkStatus();
  const bool out = copy->direction == plan::HostCopy::Direction::kToHost;
  if (instruction.inputs.size() != (out ? 1 : 0) || instruction.outputs.size() != (out ? 0 : 1))
    return Internal("takes {} values and gives {}", instruction.inputs.size(), instruction.outputs.size());
  const plan::BufferRef& ref = out ? instruction.inputs[0] : instruction.outputs[0];
  if (!Training() || !ref.in_slot)
    return Internal("copies {}, which is in no slot", NameOf(plan_, ref.value));
  const std::int64_t end = copy->host_offset + ref.bytes();
  const std::int64_t kept = HostBytes(segment.chunk);
  if (copy->host_offset < 0 || end > kept) {
    return Internal("uses [{}, {}) of the host's memory, which keeps {} bytes of a microbatch",
                    copy->host_offset, end, kept);
  }
  const std::int32_t key = KeyOf(ref.value, instruction.half);
  if (out) {
    host_.Write(copy->host_offset, end, key, static_cast<std::int32_t>(i));
  } else if (!host_.Holds(copy->host_offset, end, key).ok) {
    return Internal("brings back {}, which is not at {} of the host's memory", NameOf(plan_, ref.value),
                    copy->host_offset);
  }
  return absl::OkStatus();
}

std::int64_t SegmentWalk::HostBytes(std::int32_t chunk) const {
  for (const plan::Chunk& of : plan_.stages[static_cast<size_t>(index_)].chunks) {
    if (of.index == chunk) return of.host_bytes;
  }
  return 0;
}

// Its errors name the instruction.
absl::Status SegmentWalk::Reads(const plan::Segment& segment, size_t i) const {
  const plan::Instruction& instruction = segment.instructions[i];
  const auto name = [&] { return InstructionName(index_, segment, i); };
  const bool both = instruction.half == Half::kBoth;
  for (const plan::BufferRef& input : instruction.inputs) {
    if (const auto status = HasItsSize(plan_, input, both ? 2 : 1); !status.ok())
      return WithContext(status, name());
    const ValueKind kind = ValueOf(plan_, input).kind;
    if (kind == ValueKind::kAccumulator)
      return Internal("{} reads the sum {} in a microbatch", name(), NameOf(plan_, input.value));
    if (kind != ValueKind::kParameter && kind != ValueKind::kDerived && kind != ValueKind::kState) {
      RETURN_IF_ERROR(ReadsValue(segment, i, input));
    } else if (const auto status = places_.Check(input); !status.ok()) {
      return WithContext(status, name());
    }
  }
  return absl::OkStatus();
}

// The half's value that an instruction reads; of what is made of both, each half's, one behind the other.
absl::Status SegmentWalk::ReadsValue(const plan::Segment& segment, size_t i,
                                     const plan::BufferRef& input) const {
  const plan::Instruction& instruction = segment.instructions[i];
  const bool both = instruction.half == Half::kBoth;
  plan::BufferRef ref = input;
  if (both) ref.elements /= 2;
  for (const Half half : {Half::kFirst, Half::kSecond}) {
    if (!both && half != instruction.half) continue;
    // The name is only needed where the value is not found.
    const std::int32_t key = KeyOf(ref.value, half);
    if (!(ref.in_slot ? slot_ : arena_).Holds(ref.offset, End(ref), key).ok)
      return Find(ref, key, segment, InstructionName(index_, segment, i));
    if (const auto status = InsidePass(ref); !status.ok())
      return WithContext(status, InstructionName(index_, segment, i));
    ref.offset += ref.bytes();
  }
  return absl::OkStatus();
}

// Whether the instruction may write its outputs and scratch; notes what these then hold.
absl::Status SegmentWalk::Writes(const plan::Instruction& instruction, std::int32_t writer,
                                 std::int64_t slot_bytes) {
  for (size_t k = 0; k < instruction.outputs.size(); ++k) {
    const plan::BufferRef& output = instruction.outputs[k];
    RETURN_IF_ERROR(MayWrite(instruction, k, slot_bytes));
    (output.in_slot ? slot_ : arena_)
        .Write(output.offset, Reach(plan_, output), KeyOf(output.value, instruction.half), writer);
  }
  if (instruction.scratch.elements == 0) return absl::OkStatus();
  RETURN_IF_ERROR(InsidePass(instruction.scratch));
  RETURN_IF_ERROR(stage_arena_.IsTransient(instruction.scratch, "its scratch"));
  const std::int32_t holds =
      instruction.LeavesAddition() ? PartOf(KeyOf(instruction.outputs[0].value, instruction.half)) : kScratch;
  arena_.Write(instruction.scratch.offset, End(instruction.scratch), holds, writer);
  return absl::OkStatus();
}

// Where a training microbatch's passes may put what they make; other segments have no such bounds.
absl::Status SegmentWalk::InsidePass(const plan::BufferRef& ref) const {
  return Training() ? stage_arena_.InsidePass(ref) : absl::OkStatus();
}

// Accumulators at their place, and only by adding; what outlives a segment at its place; else activations.
absl::Status SegmentWalk::MayWrite(const plan::Instruction& instruction, size_t k,
                                   std::int64_t slot_bytes) const {
  const plan::BufferRef& output = instruction.outputs[k];
  RETURN_IF_ERROR(HasItsSize(plan_, output, 1));
  const plan::LocalValue& value = ValueOf(plan_, output);
  const bool adds = ((instruction.accumulate() >> k) & 1U) != 0;
  if (value.kind == ValueKind::kAccumulator) return MayAdd(instruction, k);
  if (adds) return Internal("adds to {}, which is no sum", value.name);
  if (value.kind == ValueKind::kDerived && phase_ == Phase::kPreparing) return places_.Check(output);
  if (value.kind == ValueKind::kState && phase_ != Phase::kPreparing)
    return places_.Check(output);  // where it may be moved, and how often: VerifyStates
  if (value.kind != ValueKind::kActivation) return Internal("writes {}, which is no activation", value.name);
  return MayMake(instruction, output, slot_bytes);
}

absl::Status SegmentWalk::MayAdd(const plan::Instruction& instruction, size_t k) const {
  const plan::BufferRef& output = instruction.outputs[k];
  const plan::LocalValue& value = ValueOf(plan_, output);
  const bool adds = ((instruction.accumulate() >> k) & 1U) != 0;
  const bool can = instruction.op() != nullptr && ((instruction.op()->accumulates >> k) & 1U) != 0;
  if (!adds && places_.TakesTurns(output.value)) return places_.Check(output);  // VerifyShards
  if (!adds || !can) return Internal("overwrites the sum {}", value.name);
  const bool fresh = ((instruction.fresh() >> k) & 1U) != 0;
  if (fresh && value.parameter < 0)
    return Internal("overwrites the sum {} in the first microbatch", value.name);
  return places_.Check(output);
}

// Activations: slots within their bytes; send buffers and what is kept of a microbatch whole; else transients.
absl::Status SegmentWalk::MayMake(const plan::Instruction& instruction, const plan::BufferRef& output,
                                  std::int64_t slot_bytes) const {
  const plan::LocalValue& value = ValueOf(plan_, output);
  RETURN_IF_ERROR(InsidePass(output));
  if (output.in_slot) {
    if (output.offset >= 0 && End(output) <= slot_bytes) return absl::OkStatus();
    return Internal("writes {} at slot+[{}, {}), but a slot has {} bytes", value.name, output.offset,
                    End(output), slot_bytes);
  }
  for (const auto& [key, ref] : stage_arena_.buffers().send) {
    const bool mine = plan_.transfers[static_cast<size_t>(key.first)].value == output.value &&
                      key.second == instruction.half;
    if (mine && ref.offset == output.offset && ref.bytes() == output.bytes()) return absl::OkStatus();
  }
  for (const plan::Chunk& chunk : plan_.stages[static_cast<size_t>(index_)].chunks) {
    const std::vector<plan::BufferRef>& kept = chunk.passes[stage_arena_.form()].outputs;
    const auto is_output = [&](const plan::BufferRef& ref) {
      return ref.value == output.value && SamePlace(ref, output);
    };
    if (std::any_of(kept.begin(), kept.end(), is_output)) return absl::OkStatus();
  }
  return stage_arena_.IsTransient(output, value.name);
}

}  // namespace engine::verify

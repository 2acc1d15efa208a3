#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <utility>

#include "engine/graph/op.h"
#include "engine/plan/arena.h"
#include "engine/verify/contents.h"
#include "engine/verify/regions.h"
#include "engine/verify/sums.h"
#include "engine/verify/verify.h"
#include "engine/verify/waits.h"

namespace engine::verify {
namespace {

using graph::ValueKind;
using plan::Half;

// Checks one stage: its training segments chunk by chunk, its evaluation, and the flat segments.
class SegmentVerifier {
 public:
  SegmentVerifier(const plan::Plan& plan, std::int32_t index)
      : plan_(plan), index_(index), stage_(plan.stages[static_cast<size_t>(index)]) {}

  absl::Status Run() {
    RETURN_IF_ERROR(MapPersistent());
    for (const plan::Chunk& chunk : stage_.chunks) RETURN_IF_ERROR(Staging(chunk));
    if (Trains(stage_)) {
      RETURN_IF_ERROR(Enter(plan::ProgramKind::kTrain));
      RETURN_IF_ERROR(Transients());
      for (const plan::Chunk& chunk : stage_.chunks) RETURN_IF_ERROR(Training(chunk));
      RETURN_IF_ERROR(Begin(SegmentAt(stage_.begin())));
      RETURN_IF_ERROR(FlatRefs(SegmentAt(stage_.update())));
    }
    RETURN_IF_ERROR(Enter(plan::ProgramKind::kEvaluate));
    for (const plan::Chunk& chunk : stage_.chunks) RETURN_IF_ERROR(Evaluation(chunk));
    return Begin(SegmentAt(stage_.ends[plan::ProgramKind::kEvaluate].first));
  }

 private:
  const plan::Segment& SegmentAt(std::int32_t index) const {
    return stage_.segments[static_cast<size_t>(index)];
  }

  // Those of a microbatch's passes lie in the arena, beside what outlives a segment.
  absl::Status Transients() const {
    const std::int64_t begin = stage_.transient_base;
    const std::int64_t end = begin + stage_.pass_bytes;
    if (begin < 0 || stage_.pass_bytes < 0 || end > stage_.arena_bytes) {
      return Internal("stage {}: transients at [{}, {}) are outside of the arena of {} bytes", index_, begin,
                      end, stage_.arena_bytes);
    }
    const Region* region = regions_.Overlapping(begin, end);
    if (region == nullptr) return absl::OkStatus();
    return Internal("stage {}: transients at [{}, {}) overlap {} at [{}, {})", index_, begin, end,
                    region->name, region->begin, region->end);
  }

  // The staging buffers hold the inputs of all microbatches of the largest program.
  absl::Status Staging(const plan::Chunk& chunk) const {
    std::int64_t elements = 0;
    for (const plan::ProgramKind kind : plan::kProgramKinds) {
      std::int64_t fed = 0;  // for a step
      for (const plan::BufferRef& input : chunk.passes[kind].inputs) fed += plan::StagedWords(input.bytes());
      elements = std::max(elements, fed * plan_.microbatches / plan_.HalvesOf(kind));
    }
    for (const plan::BufferRef* buffer : {&chunk.incoming, &chunk.staged}) {
      if (buffer->elements == elements && (elements == 0 || buffer->dtype == DType::kI32)) continue;
      return Internal("stage {} chunk {}: a staging buffer of {} numbers for inputs of {}", index_,
                      chunk.index, buffer->elements, elements);
    }
    return absl::OkStatus();
  }

  // Parameters and accumulators, by value.
  absl::Status MapPersistent() {
    absl::flat_hash_map<std::int32_t, plan::BufferRef> parameter_at;
    for (const plan::Bucket& bucket : stage_.buckets) {
      for (const plan::Bucket::Item& item : bucket.items) {
        const plan::PlanParameter& parameter = plan_.parameters[static_cast<size_t>(item.parameter)];
        plan::BufferRef ref = bucket.parameter;
        ref.offset += item.offset_elements * SizeOf(ref.dtype);
        ref.elements = item.elements;
        parameter_at[item.parameter] = ref;
        if (parameter.gradient < 0) continue;
        ref = bucket.gradient;
        ref.offset += item.offset_elements * SizeOf(ref.dtype);
        ref.elements = item.elements;
        persistent_[parameter.gradient] = ref;
        if (bucket.gradient_shard.elements > 0) in_turns_.insert(parameter.gradient);
      }
    }
    for (const plan::BufferRef& derived : stage_.derived) persistent_[derived.value] = derived;
    MapStates();
    for (size_t v = 0; v < plan_.values.size(); ++v) {
      const plan::LocalValue& value = plan_.values[v];
      const std::int32_t id = static_cast<std::int32_t>(v);
      if (value.kind == ValueKind::kParameter) {
        if (const auto it = parameter_at.find(value.parameter); it != parameter_at.end())
          persistent_[id] = it->second;
      } else if (value.metric >= 0) {
        persistent_[id] = stage_.scalars;
        persistent_[id].offset += plan::ScalarOf(value.metric) * SizeOf(DType::kF64);
        persistent_[id].elements = 1;
      }
    }
    return absl::OkStatus();
  }

  // A state that nodes move has one name in both graphs, and one place.
  void MapStates() {
    absl::flat_hash_map<std::string, plan::BufferRef> by_name;
    for (const plan::State& state : stage_.states) {
      persistent_[state.buffer.value] = state.buffer;
      if (state.spec.update == graph::StateUpdate::kNode)
        by_name[NameOf(plan_, state.buffer.value)] = state.buffer;
    }
    for (size_t v = 0; v < plan_.values.size() && !by_name.empty(); ++v) {
      const auto state = by_name.find(plan_.values[v].name);
      if (plan_.values[v].kind == ValueKind::kState && state != by_name.end())
        persistent_[static_cast<std::int32_t>(v)] = state->second;
    }
  }

  // What programs of a kind hold from step to step: they run the same segments, so it is the same in all of them.
  absl::Status Enter(plan::ProgramKind kind) {
    const std::int32_t largest = plan_.ProgramOf(kind);
    ASSIGN_OR_RETURN(regions_, Regions::Of(plan_, {index_, largest}));
    ASSIGN_OR_RETURN(buffers_, PipelineBuffersOf(plan_, {index_, largest}));
    for (std::int32_t p = 0; p < largest; ++p) {
      if (plan_.ProgramAt(p).kind != kind) continue;
      ASSIGN_OR_RETURN(const PipelineBuffers buffers, PipelineBuffersOf(plan_, {index_, p}));
      RETURN_IF_ERROR(SameBuffers(p, buffers.send, buffers_.send));
      RETURN_IF_ERROR(SameBuffers(p, buffers.receive, buffers_.receive));
    }
    return absl::OkStatus();
  }

  absl::Status SameBuffers(std::int32_t program, const PipelineBuffers::ByHalf& buffers,
                           const PipelineBuffers::ByHalf& of_largest) const {
    for (const auto& [key, buffer] : of_largest) {
      const auto it = buffers.find(key);
      if (it != buffers.end() && SamePlace(it->second, buffer)) continue;
      return Internal("stage {} {}: {} does not go through the buffer at {}, where its segments have it",
                      index_, plan_.ProgramName(program),
                      NameOf(plan_, plan_.transfers[static_cast<size_t>(key.first)].value), buffer.offset);
    }
    return absl::OkStatus();
  }

  // Of a microbatch, or of both halves.
  std::int64_t SlotBytes(const plan::Chunk& chunk) const { return plan_.halves * chunk.slot_bytes; }

  absl::Status Fill(const plan::Chunk& chunk, const plan::BufferRef& ref, Half half) {
    RETURN_IF_ERROR(Sizes(ref, 1));
    if (ref.in_slot && (ref.offset < 0 || End(ref) > SlotBytes(chunk))) {
      return Internal("stage {} chunk {}: {} is put at slot+[{}, {}), but a slot has {} bytes", index_,
                      chunk.index, NameOf(plan_, ref.value), ref.offset, End(ref), SlotBytes(chunk));
    }
    (ref.in_slot ? slot_ : arena_).Write(ref.offset, End(ref), KeyOf(ref.value, half), kBefore);
    return absl::OkStatus();
  }

  // Values that the pipeline brings before the segment runs.
  absl::Status Received(const plan::Chunk& chunk, bool backward) {
    for (const auto& [key, ref] : buffers_.receive) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(key.first)];
      if (transfer.to_chunk != chunk.index || IsBackward(transfer) != backward) continue;
      RETURN_IF_ERROR(Fill(chunk, ref, key.second));
    }
    return absl::OkStatus();
  }

  // Values that the pipeline takes after the segment ran.
  absl::Status Sent(const plan::Chunk& chunk, bool backward, const plan::Segment& segment) const {
    for (const auto& [key, ref] : buffers_.send) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(key.first)];
      if (transfer.from_chunk != chunk.index || IsBackward(transfer) != backward) continue;
      RETURN_IF_ERROR(Find(ref, KeyOf(transfer.value, key.second), segment,
                           fmt::format("stage {}: the send after {}", index_, segment.name)));
    }
    return absl::OkStatus();
  }

  absl::Status Training(const plan::Chunk& chunk) {
    slot_ = {};
    arena_ = {};
    const std::vector<plan::BufferRef>& inputs = chunk.train().inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool second = plan_.halves > 1 && i >= inputs.size() / 2;
      RETURN_IF_ERROR(Fill(chunk, inputs[i], second ? Half::kSecond : Half::kFirst));
    }
    RETURN_IF_ERROR(Received(chunk, false));
    training_ = true;
    halves_ = plan_.halves > 1;
    const plan::Segment& forward = SegmentAt(chunk.train().forward);
    RETURN_IF_ERROR(Walk(forward, SlotBytes(chunk)));
    RETURN_IF_ERROR(Sent(chunk, false, forward));
    arena_ = {};  // other segments run in between; only the slot is this microbatch's
    RETURN_IF_ERROR(Received(chunk, true));
    const plan::Segment& backward = SegmentAt(chunk.train().backward);
    RETURN_IF_ERROR(Walk(backward, SlotBytes(chunk)));
    RETURN_IF_ERROR(Sent(chunk, true, backward));
    arena_ = {};
    if (chunk.train().weights >= 0) RETURN_IF_ERROR(Walk(SegmentAt(chunk.train().weights), SlotBytes(chunk)));
    halves_ = false;
    training_ = false;
    return absl::OkStatus();
  }

  absl::Status Evaluation(const plan::Chunk& chunk) {
    slot_ = {};
    arena_ = {};
    for (const plan::BufferRef& input : chunk.evaluate().inputs)
      RETURN_IF_ERROR(Fill(chunk, input, Half::kFirst));
    RETURN_IF_ERROR(Received(chunk, false));
    const plan::Segment& segment = SegmentAt(chunk.evaluate().forward);
    RETURN_IF_ERROR(Walk(segment, 0));
    RETURN_IF_ERROR(Sent(chunk, false, segment));
    const bool last = chunk.end_unit == static_cast<std::int32_t>(plan_.units.size());
    if (!last || plan_.logits_buffer.elements == 0) return absl::OkStatus();
    return Find(plan_.logits_buffer, KeyOf(plan_.logits_buffer.value, Half::kFirst), segment,
                fmt::format("stage {}: the reader of the logits after {}", index_, segment.name));
  }

  // Whether the value is where the reader looks for it.
  absl::Status Find(const plan::BufferRef& ref, std::int32_t key, const plan::Segment& segment,
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

  std::string WrittenBy(const plan::Segment& segment, const Contents::Cell& cell) const {
    // A slot's cells may be an earlier segment's; its instruction is then not in this one.
    const size_t writer = static_cast<size_t>(cell.writer);
    if (cell.value == kAdded) return "(the sum that it has read)";
    if (cell.value < 0) return "(scratch)";
    return writer < segment.instructions.size() &&
                   Writes(segment.instructions[writer], ValueOfKey(cell.value))
               ? segment.instructions[writer].name
               : NameOf(plan_, ValueOfKey(cell.value));
  }

  static bool Writes(const plan::Instruction& instruction, std::int32_t value) {
    for (const plan::BufferRef& output : instruction.outputs) {
      if (output.value == value) return true;
    }
    return false;
  }

  // What runs once for both halves sums over the rows of its inputs.
  absl::Status OfBoth(const plan::Instruction& instruction) const {
    if (instruction.half != Half::kBoth) return absl::OkStatus();
    for (const plan::BufferRef& output : instruction.outputs) {
      if (ValueOf(plan_, output).kind != ValueKind::kAccumulator)
        return Internal("makes {} of both halves, which is no sum", NameOf(plan_, output.value));
    }
    return absl::OkStatus();
  }

  absl::Status Walk(const plan::Segment& segment, std::int64_t slot_bytes) {
    RETURN_IF_ERROR(VerifyHalves(index_, segment, halves_));
    sums_.Clear();
    under_way_.Clear();
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      RETURN_IF_ERROR(Step(segment, i, slot_bytes));
    }
    return absl::OkStatus();
  }

  // The half's value that an instruction reads; of what is made of both, each half's, one behind the other.
  absl::Status ReadsValue(const plan::Segment& segment, size_t i, const plan::BufferRef& input) const {
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
      if (const auto status = Inside(ref); !status.ok())
        return WithContext(status, InstructionName(index_, segment, i));
      ref.offset += ref.bytes();
    }
    return absl::OkStatus();
  }

  absl::Status Step(const plan::Segment& segment, size_t i, std::int64_t slot_bytes) {
    const plan::Instruction& instruction = segment.instructions[i];
    const auto name = [&] { return InstructionName(index_, segment, i); };
    if (instruction.IsBucketExchange()) return absl::OkStatus();  // of buckets: VerifyGradients, VerifyShards
    const bool moves = instruction.kernel() == "copy" || instruction.kernel() == "add_shard";
    if (moves && instruction.op() == nullptr && !in_turns_.empty()) return absl::OkStatus();  // VerifyShards
    if (const auto status = OnItsStream(instruction); !status.ok()) return WithContext(status, name());
    const bool both = instruction.half == Half::kBoth;
    for (const plan::BufferRef& input : instruction.inputs) {
      if (const auto status = Sizes(input, both ? 2 : 1); !status.ok()) return WithContext(status, name());
      const ValueKind kind = ValueOf(plan_, input).kind;
      if (kind == ValueKind::kAccumulator)
        return Internal("{} reads the sum {} in a microbatch", name(), NameOf(plan_, input.value));
      if (kind != ValueKind::kParameter && kind != ValueKind::kDerived && kind != ValueKind::kState) {
        RETURN_IF_ERROR(ReadsValue(segment, i, input));
      } else if (const auto status = AtItsPlace(input); !status.ok()) {
        return WithContext(status, name());
      }
    }
    for (const auto& status :
         {OfBoth(instruction), sums_.Check(segment, i), under_way_.Check(segment, i), Apart(instruction)}) {
      if (!status.ok()) return WithContext(status, name());
    }
    const std::int32_t writer = static_cast<std::int32_t>(i);
    for (size_t k = 0; k < instruction.outputs.size(); ++k) {
      const plan::BufferRef& output = instruction.outputs[k];
      if (const auto status = MayWrite(instruction, k, slot_bytes); !status.ok())
        return WithContext(status, name());
      (output.in_slot ? slot_ : arena_)
          .Write(output.offset, Reach(plan_, output), KeyOf(output.value, instruction.half), writer);
    }
    if (instruction.scratch.elements == 0) return absl::OkStatus();
    for (const auto& status :
         {Inside(instruction.scratch), IsTransient(instruction.scratch, "its scratch")}) {
      if (!status.ok()) return WithContext(status, name());
    }
    const std::int32_t holds = instruction.LeavesAddition()
                                   ? PartOf(KeyOf(instruction.outputs[0].value, instruction.half))
                                   : kScratch;
    arena_.Write(instruction.scratch.offset, End(instruction.scratch), holds, writer);
    return absl::OkStatus();
  }

  // Kernels run on the computation's stream; where two halves run at once, all exchange beside it.
  absl::Status OnItsStream(const plan::Instruction& instruction) const {
    const bool exchanges = instruction.Exchanges();
    const std::int32_t wanted = exchanges && halves_ ? plan::kExchangeStream : plan::kComputeStream;
    if (instruction.stream != wanted) return Internal("is on stream {}, not {}", instruction.stream, wanted);
    if (instruction.push() && !exchanges) return Internal("pushes nothing");
    return absl::OkStatus();
  }

  // What a training microbatch makes lies in slots, buffers of the pipeline, or where its transients are: behind
  // these is where pushed gradients arrive.
  absl::Status Inside(const plan::BufferRef& ref) const {
    if (!training_ || ref.in_slot || IsPipelineBuffer(ref)) return absl::OkStatus();
    const std::int64_t begin = stage_.transient_base;
    const std::int64_t end = begin + stage_.pass_bytes;
    if (ref.offset >= begin && Reach(plan_, ref) <= end) return absl::OkStatus();
    return Internal("{} at [{}, {}) reaches out of the transients, [{}, {})", NameOrScratch(ref), ref.offset,
                    Reach(plan_, ref), begin, end);
  }

  // Outside of slots.
  bool IsPipelineBuffer(const plan::BufferRef& ref) const {
    for (const auto* buffers : {&buffers_.send, &buffers_.receive}) {
      for (const auto& [t, buffer] : *buffers) {
        if (ref.value == buffer.value && !buffer.in_slot && SamePlace(ref, buffer)) return true;
      }
    }
    return false;
  }

  // `times`: how many halves' it is.
  absl::Status Sizes(const plan::BufferRef& ref, std::int64_t times) const {
    if (ref.value < 0) return Internal("takes a buffer that is no tensor");
    const plan::LocalValue& value = ValueOf(plan_, ref);
    if (ref.elements == times * value.local.elements() && ref.dtype == value.dtype) return absl::OkStatus();
    return Internal("{} is {}{} on a rank, its buffer {}[{}]", value.name, Name(value.dtype),
                    value.local.ToString(), Name(ref.dtype), ref.elements);
  }

  absl::Status AtItsPlace(const plan::BufferRef& ref) const {
    const auto it = persistent_.find(ref.value);
    if (it == persistent_.end())
      return Internal("{} is not held by stage {}", NameOf(plan_, ref.value), index_);
    const plan::BufferRef& place = it->second;
    if (!ref.in_slot && ref.shard_axes.empty() && place.offset == ref.offset &&
        place.elements == ref.elements && place.dtype == ref.dtype) {
      return absl::OkStatus();
    }
    return Internal("{} lies at {}, not at {}", NameOf(plan_, ref.value), place.offset, ref.offset);
  }

  // Outputs and scratch share no bytes with each other or with inputs, but for what the op does in place.
  absl::Status Apart(const plan::Instruction& instruction) const {
    const auto clash = [&](const plan::BufferRef& a, const plan::BufferRef& b) {
      return Internal("{} at {}{} overlaps {} at {}{}", NameOrScratch(a), a.in_slot ? "slot+" : "", a.offset,
                      NameOrScratch(b), b.in_slot ? "slot+" : "", b.offset);
    };
    for (size_t k = 0; k < instruction.outputs.size(); ++k) {
      const plan::BufferRef& output = instruction.outputs[k];
      for (size_t i = 0; i < instruction.inputs.size(); ++i) {
        if (!Overlap(plan_, output, instruction.inputs[i])) continue;
        if (instruction.LeavesAddition()) continue;  // it lies in the input: LeftSums
        const bool in_place = k == 0 && instruction.op() != nullptr &&
                              instruction.op()->in_place_input == static_cast<int>(i) &&
                              output.offset == instruction.inputs[i].offset &&
                              output.bytes() == instruction.inputs[i].bytes();
        if (!in_place) return clash(output, instruction.inputs[i]);
      }
      for (size_t other = 0; other < k; ++other) {
        if (Overlap(plan_, output, instruction.outputs[other]))
          return clash(output, instruction.outputs[other]);
      }
    }
    if (instruction.scratch.elements == 0) return absl::OkStatus();
    for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
      for (const plan::BufferRef& ref : *refs) {
        if (Overlap(plan_, instruction.scratch, ref)) return clash(instruction.scratch, ref);
      }
    }
    return absl::OkStatus();
  }

  std::string NameOrScratch(const plan::BufferRef& ref) const {
    return ref.value < 0 ? "its scratch" : NameOf(plan_, ref.value);
  }

  // Accumulators at their place, and only by adding; slots within their bytes; send buffers whole; else
  // transients.
  absl::Status MayWrite(const plan::Instruction& instruction, size_t k, std::int64_t slot_bytes) const {
    const plan::BufferRef& output = instruction.outputs[k];
    RETURN_IF_ERROR(Sizes(output, 1));
    const plan::LocalValue& value = ValueOf(plan_, output);
    const bool adds = ((instruction.accumulate() >> k) & 1U) != 0;
    if (value.kind == ValueKind::kAccumulator) {
      const bool can = instruction.op() != nullptr && ((instruction.op()->accumulates >> k) & 1U) != 0;
      if (!adds && in_turns_.contains(output.value)) return AtItsPlace(output);  // VerifyShards
      if (!adds || !can) return Internal("overwrites the sum {}", value.name);
      const bool fresh = ((instruction.fresh() >> k) & 1U) != 0;
      if (fresh && value.parameter < 0)
        return Internal("overwrites the sum {} in the first microbatch", value.name);
      return AtItsPlace(output);
    }
    if (adds) return Internal("adds to {}, which is no sum", value.name);
    if (value.kind == ValueKind::kDerived && preparing_) return AtItsPlace(output);
    if (value.kind == ValueKind::kState && training_) return AtItsPlace(output);  // once: VerifyStates
    if (value.kind != ValueKind::kActivation)
      return Internal("writes {}, which is no activation", value.name);
    RETURN_IF_ERROR(Inside(output));
    if (output.in_slot) {
      if (output.offset >= 0 && End(output) <= slot_bytes) return absl::OkStatus();
      return Internal("writes {} at slot+[{}, {}), but a slot has {} bytes", value.name, output.offset,
                      End(output), slot_bytes);
    }
    for (const auto& [key, ref] : buffers_.send) {
      const bool mine = plan_.transfers[static_cast<size_t>(key.first)].value == output.value &&
                        key.second == instruction.half;
      if (mine && ref.offset == output.offset && ref.bytes() == output.bytes()) return absl::OkStatus();
    }
    return IsTransient(output, value.name);
  }

  absl::Status IsTransient(const plan::BufferRef& ref, const std::string& what) const {
    if (ref.offset < 0 || ref.in_slot || End(ref) > stage_.arena_bytes) {
      return Internal("writes {} at [{}, {}), outside of the arena of {} bytes", what, ref.offset, End(ref),
                      stage_.arena_bytes);
    }
    const Region* region = regions_.Overlapping(ref.offset, End(ref));
    if (region == nullptr) return absl::OkStatus();
    return Internal("writes {} at [{}, {}), which overlaps {} at [{}, {})", what, ref.offset, End(ref),
                    region->name, region->begin, region->end);
  }

  // The start of an iteration sets loss and norm to zero.
  absl::Status Begin(const plan::Segment& segment) {
    const auto zeroed = [&](const plan::BufferRef& buffer) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (instruction.kernel() != "zero" || instruction.outputs.size() != 1) continue;
        const plan::BufferRef& output = instruction.outputs[0];
        if (output.offset == buffer.offset && output.bytes() == buffer.bytes() && output.shard_axes.empty())
          return true;
      }
      return false;
    };
    if (!zeroed(stage_.scalars))
      return Internal("stage {} {} does not zero the scalars", index_, segment.name);
    plan::Segment rest = segment;
    std::erase_if(rest.instructions, [](const plan::Instruction& i) { return i.op() != nullptr; });
    const auto kernels = std::count_if(rest.instructions.begin(), rest.instructions.end(), [](const auto& i) {
      return i.collective() == plan::Collective::kNone;  // the others: VerifyShards
    });
    if (kernels != 1) {
      return Internal("stage {} {} has {} instructions, but one pair of sums to set to zero", index_,
                      segment.name, kernels);
    }
    RETURN_IF_ERROR(FlatRefs(rest));
    return Prepared(segment);
  }

  // Every derived value is made here, once.
  absl::Status Prepared(const plan::Segment& segment) {
    preparing_ = true;
    std::vector<std::int32_t> made;
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      if (segment.instructions[i].op() == nullptr) continue;
      RETURN_IF_ERROR(Step(segment, i, 0));
      for (const plan::BufferRef& output : segment.instructions[i].outputs) made.push_back(output.value);
    }
    preparing_ = false;
    if (&segment !=
        &SegmentAt(stage_.begin() >= 0 ? stage_.begin() : stage_.ends[plan::ProgramKind::kEvaluate].first))
      return absl::OkStatus();
    for (const plan::BufferRef& derived : stage_.derived) {
      const auto times = std::count(made.begin(), made.end(), derived.value);
      if (times == 1) continue;
      return Internal("stage {} {} makes {} {} times, not once", index_, segment.name,
                      NameOf(plan_, derived.value), times);
    }
    return absl::OkStatus();
  }

  // Flat buffers lie in the arena, all their shards included, and scratch among the transients.
  absl::Status FlatRefs(const plan::Segment& segment) const {
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const plan::BufferRef& scratch = segment.instructions[i].scratch;
      const std::int64_t transients =
          stage_.arena_bytes - stage_.memory.evaluation - stage_.memory.transients;
      if (scratch.elements > 0 && (scratch.offset < transients || End(scratch) > stage_.arena_bytes)) {
        return Internal("{} scribbles outside of the transients, which begin at {}",
                        InstructionName(index_, segment, i), transients);
      }
      for (const auto* refs : {&segment.instructions[i].inputs, &segment.instructions[i].outputs}) {
        for (const plan::BufferRef& ref : *refs) {
          const std::int64_t last = ref.shard_axes.empty() ? 0 : plan_.mesh.GroupSize(ref.shard_axes) - 1;
          if (ref.offset >= 0 && !ref.in_slot && End(ref) + last * ref.shard_stride <= stage_.arena_bytes)
            continue;
          return Internal("{} reaches outside of the arena of {} bytes", InstructionName(index_, segment, i),
                          stage_.arena_bytes);
        }
      }
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  absl::flat_hash_map<std::int32_t, plan::BufferRef> persistent_;
  absl::flat_hash_set<std::int32_t> in_turns_;  // gradients in a buffer that others take too
  Regions regions_;
  PipelineBuffers buffers_;
  bool preparing_ = false;  // walking the start of an iteration
  bool training_ = false;   // walking a segment of a training microbatch
  bool halves_ = false;     // walking a segment that two halves run at once
  Contents slot_;
  Contents arena_;
  LeftSums sums_{plan_, &arena_, &slot_};
  ConversionsUnderWay under_way_{plan_};
};

}  // namespace

absl::Status VerifySegments(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    RETURN_IF_ERROR(SegmentVerifier(plan, static_cast<std::int32_t>(s)).Run());
  }
  return absl::OkStatus();
}

}  // namespace engine::verify

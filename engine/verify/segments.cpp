#include <algorithm>
#include <vector>

#include "engine/plan/arena.h"
#include "engine/verify/contents.h"
#include "engine/verify/persistent.h"
#include "engine/verify/regions.h"
#include "engine/verify/segment_walk.h"
#include "engine/verify/stage_arena.h"
#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

using plan::Half;

// The staging buffers hold the inputs of all microbatches of the largest program.
absl::Status StagingFits(const plan::Plan& plan, std::int32_t stage, const plan::Chunk& chunk) {
  std::int64_t elements = 0;
  for (plan::FormId form = 0; form < plan.FormsEnd(); ++form) {
    std::int64_t fed = 0;  // for a step
    for (const plan::BufferRef& input : chunk.passes[form].inputs) fed += plan::StagedWords(input.bytes());
    const std::int32_t largest = plan.ProgramOf(form);
    const std::int64_t microbatches = largest < 0 ? 0 : plan.ProgramAt(largest).microbatches;
    elements = std::max(elements, fed * microbatches / plan.HalvesOf(form));
  }
  for (const plan::BufferRef* buffer : {&chunk.incoming, &chunk.staged}) {
    if (buffer->elements == elements && (elements == 0 || buffer->dtype == DType::kI32)) continue;
    return Internal("stage {} chunk {}: a staging buffer of {} numbers for inputs of {}", stage, chunk.index,
                    buffer->elements, elements);
  }
  return absl::OkStatus();
}

// What is kept of a microbatch is f32, and there is room for that of all microbatches.
absl::Status KeptFits(const plan::Plan& plan, std::int32_t stage, const plan::Chunk& chunk) {
  std::int64_t elements = 0;  // of a microbatch
  bool is_f32 = chunk.kept.elements == 0 || chunk.kept.dtype == DType::kF32;
  for (const plan::BufferRef& output : chunk.evaluate().outputs) {
    elements += output.elements;
    is_f32 = is_f32 && output.dtype == DType::kF32;
  }
  if (is_f32 && chunk.kept.elements == elements * plan.microbatches) return absl::OkStatus();
  return Internal("stage {} chunk {}: {} numbers are kept in a buffer of {}", stage, chunk.index,
                  elements * plan.microbatches, chunk.kept.elements);
}

// Flat buffers lie in the arena, all their shards included, and scratch among the transients.
absl::Status FlatRefs(const plan::Plan& plan, std::int32_t index, const plan::Segment& segment) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const plan::BufferRef& scratch = segment.instructions[i].scratch;
    const std::int64_t transients = stage.arena_bytes - stage.memory.evaluation - stage.memory.transients;
    if (scratch.elements > 0 && (scratch.offset < transients || End(scratch) > stage.arena_bytes)) {
      return Internal("{} scribbles outside of the transients, which begin at {}",
                      InstructionName(index, segment, i), transients);
    }
    for (const auto* refs : {&segment.instructions[i].inputs, &segment.instructions[i].outputs}) {
      for (const plan::BufferRef& ref : *refs) {
        const std::int64_t last = ref.shard_axes.empty() ? 0 : plan.mesh.GroupSize(ref.shard_axes) - 1;
        if (ref.offset >= 0 && !ref.in_slot && End(ref) + last * ref.shard_stride <= stage.arena_bytes)
          continue;
        return Internal("{} reaches outside of the arena of {} bytes", InstructionName(index, segment, i),
                        stage.arena_bytes);
      }
    }
  }
  return absl::OkStatus();
}

// Shows of one stage that its segments may follow each other as its programs run them: it walks the training
// segments chunk by chunk, the evaluation, and the flat segments at both ends of an iteration.
class SegmentVerifier {
 public:
  SegmentVerifier(const plan::Plan& plan, std::int32_t index)
      : plan_(plan), index_(index), stage_(plan.stages[static_cast<size_t>(index)]), places_(plan, index) {}

  // What the host keeps of each microbatch in flight has bytes of its own there.
  absl::Status HostMemory() const {
    std::int64_t end = 0;
    for (const plan::Chunk& chunk : stage_.chunks) {  // in the order of their places
      if (chunk.host_base != end || chunk.host_bytes < 0) {
        return Internal("stage {} chunk {}: {} bytes of the host's memory at {}, but those before end at {}",
                        index_, chunk.index, chunk.host_bytes, chunk.host_base, end);
      }
      end += chunk.slots * chunk.host_bytes;
    }
    if (end == stage_.host_bytes) return absl::OkStatus();
    return Internal("stage {}: {} bytes of the host's memory, of which its chunks use {}", index_,
                    stage_.host_bytes, end);
  }

  absl::Status Run() const {
    RETURN_IF_ERROR(HostMemory());
    for (const plan::Chunk& chunk : stage_.chunks) {
      RETURN_IF_ERROR(StagingFits(plan_, index_, chunk));
      RETURN_IF_ERROR(KeptFits(plan_, index_, chunk));
    }
    if (Trains(stage_)) RETURN_IF_ERROR(Train());
    for (plan::FormId form = 0; form < plan_.FormsEnd(); ++form) {
      if (!plan_.FactsAt(form).trains && plan_.ProgramOf(form) >= 0) RETURN_IF_ERROR(Forward(form));
    }
    return absl::OkStatus();
  }

 private:
  const plan::Segment& SegmentAt(std::int32_t index) const {
    return stage_.segments[static_cast<size_t>(index)];
  }

  absl::Status Train() const {
    ASSIGN_OR_RETURN(const StageArena arena, StageArena::Of(plan_, index_, plan::kTrainForm));
    RETURN_IF_ERROR(arena.TransientsFit());
    SegmentWalk walk(plan_, index_, places_, arena);
    for (const plan::Chunk& chunk : stage_.chunks) RETURN_IF_ERROR(Training(chunk, arena.buffers(), walk));
    RETURN_IF_ERROR(Begin(SegmentAt(stage_.begin()), walk));
    return FlatRefs(plan_, index_, SegmentAt(stage_.update()));
  }

  // Programs that pass forward only.
  absl::Status Forward(plan::FormId form) const {
    ASSIGN_OR_RETURN(const StageArena arena, StageArena::Of(plan_, index_, form));
    SegmentWalk walk(plan_, index_, places_, arena);
    for (const plan::Chunk& chunk : stage_.chunks) RETURN_IF_ERROR(ForwardPass(chunk, arena, walk));
    return Begin(SegmentAt(stage_.ends[form].first), walk);
  }

  // Values that the pipeline brings before the segment runs.
  absl::Status Received(const plan::Chunk& chunk, bool backward, const PipelineBuffers& buffers,
                        SegmentWalk& walk) const {
    for (const auto& [key, ref] : buffers.receive) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(key.first)];
      if (transfer.to_chunk != chunk.index || IsBackward(transfer) != backward) continue;
      RETURN_IF_ERROR(walk.Fill(chunk, ref, key.second));
    }
    return absl::OkStatus();
  }

  // Values that the pipeline takes after the segment ran.
  absl::Status Sent(const plan::Chunk& chunk, bool backward, const plan::Segment& segment,
                    const PipelineBuffers& buffers, const SegmentWalk& walk) const {
    for (const auto& [key, ref] : buffers.send) {
      const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(key.first)];
      if (transfer.from_chunk != chunk.index || IsBackward(transfer) != backward) continue;
      RETURN_IF_ERROR(walk.Find(ref, KeyOf(transfer.value, key.second), segment,
                                fmt::format("stage {}: the send after {}", index_, segment.name)));
    }
    return absl::OkStatus();
  }

  absl::Status Training(const plan::Chunk& chunk, const PipelineBuffers& buffers, SegmentWalk& walk) const {
    walk.ForgetAll();
    const std::vector<plan::BufferRef>& inputs = chunk.train().inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool second = plan_.halves > 1 && i >= inputs.size() / 2;
      RETURN_IF_ERROR(walk.Fill(chunk, inputs[i], second ? Half::kSecond : Half::kFirst));
    }
    RETURN_IF_ERROR(Received(chunk, false, buffers, walk));
    const std::int64_t slot_bytes = SlotBytes(plan_, chunk);
    const plan::Segment& forward = SegmentAt(chunk.train().forward);
    RETURN_IF_ERROR(walk.Walk(forward, slot_bytes));
    RETURN_IF_ERROR(Sent(chunk, false, forward, buffers, walk));
    walk.ForgetArena();
    RETURN_IF_ERROR(Received(chunk, true, buffers, walk));
    const plan::Segment& backward = SegmentAt(chunk.train().backward);
    RETURN_IF_ERROR(walk.Walk(backward, slot_bytes));
    RETURN_IF_ERROR(Sent(chunk, true, backward, buffers, walk));
    walk.ForgetArena();
    if (chunk.train().weights < 0) return absl::OkStatus();
    return walk.Walk(SegmentAt(chunk.train().weights), slot_bytes);
  }

  absl::Status ForwardPass(const plan::Chunk& chunk, const StageArena& arena, SegmentWalk& walk) const {
    walk.ForgetAll();
    const plan::ChunkPasses& passes = chunk.passes[arena.form()];
    for (const plan::BufferRef& input : passes.inputs) RETURN_IF_ERROR(walk.Fill(chunk, input, Half::kFirst));
    RETURN_IF_ERROR(Received(chunk, false, arena.buffers(), walk));
    const plan::Segment& segment = SegmentAt(passes.forward);
    RETURN_IF_ERROR(walk.Walk(segment, 0));
    RETURN_IF_ERROR(Sent(chunk, false, segment, arena.buffers(), walk));
    if (chunk.end_unit == static_cast<std::int32_t>(plan_.units.size()))
      RETURN_IF_ERROR(Logits(passes, arena.form(), segment, walk));
    for (const plan::BufferRef& output : passes.outputs) {
      RETURN_IF_ERROR(walk.Find(output, KeyOf(output.value, Half::kFirst), segment,
                                fmt::format("stage {}: what is kept after {}", index_, segment.name)));
    }
    return absl::OkStatus();
  }

  // Of the last chunk: the logits are there behind it where they are read, and generation reads them and the largest.
  absl::Status Logits(const plan::ChunkPasses& passes, plan::FormId form, const plan::Segment& segment,
                      SegmentWalk& walk) const {
    const plan::BufferRef& logits = plan_.logits[form].buffer;
    if (plan_.FactsAt(form).generates) {
      if (logits.elements == 0 || logits.value != plan_.logits[form].value)
        return Internal("stage {}: {} keeps no logits", index_, segment.name);
      const plan::Plan::TopLogits& top = plan_.top_logits[form];
      std::vector<std::int32_t> kept;
      for (const plan::BufferRef& output : passes.outputs) kept.push_back(output.value);
      std::vector<std::int32_t> told = {top.tokens, top.values, top.log_sums};
      if (top.row_log_sums >= 0) told.push_back(top.row_log_sums);
      if (kept != told)
        return Internal("stage {}: {} does not keep the largest logits", index_, segment.name);
    }
    if (logits.elements == 0) return absl::OkStatus();
    return walk.Find(logits, KeyOf(logits.value, Half::kFirst), segment,
                     fmt::format("stage {}: the reader of the logits after {}", index_, segment.name));
  }

  // The start of an iteration sets loss and norm to zero.
  absl::Status Begin(const plan::Segment& segment, SegmentWalk& walk) const {
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
    RETURN_IF_ERROR(FlatRefs(plan_, index_, rest));
    return Prepared(segment, walk);
  }

  // Of the first form that there are programs of, the segment with which these begin.
  std::int32_t FirstBegin() const {
    plan::FormId form = 0;
    while (form + 1 < plan_.FormsEnd() && stage_.ends[form].first < 0) ++form;
    return stage_.ends[form].first;
  }

  // Every derived value is made here, once.
  absl::Status Prepared(const plan::Segment& segment, SegmentWalk& walk) const {
    ASSIGN_OR_RETURN(const std::vector<std::int32_t> made, walk.Prepare(segment));
    if (&segment != &SegmentAt(FirstBegin())) return absl::OkStatus();
    for (const plan::BufferRef& derived : stage_.derived) {
      const auto times = std::count(made.begin(), made.end(), derived.value);
      if (times == 1) continue;
      return Internal("stage {} {} makes {} {} times, not once", index_, segment.name,
                      NameOf(plan_, derived.value), times);
    }
    return absl::OkStatus();
  }

  const plan::Plan& plan_;
  const std::int32_t index_;
  const plan::StagePlan& stage_;
  const PersistentPlaces places_;
};

}  // namespace

absl::Status VerifySegments(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    RETURN_IF_ERROR(SegmentVerifier(plan, static_cast<std::int32_t>(s)).Run());
  }
  return absl::OkStatus();
}

}  // namespace engine::verify

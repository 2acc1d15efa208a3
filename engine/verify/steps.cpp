#include <algorithm>
#include <string>

#include "engine/verify/border_buffers.h"
#include "engine/verify/passages.h"
#include "engine/verify/program_steps.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// Shows of one stage's program that its first and last segments are where they belong, and that every other
// step runs a pass of its chunk for microbatches that there are; leads Passages and BorderBuffers along. What
// a pass reads and writes at its borders is known from the transfers of its chunk; that its segment does so
// at these places is what VerifySegments shows.
class StepVerifier {
 public:
  StepVerifier(const plan::Plan& plan, ProgramId id)
      : steps_(plan, id), spec_(steps_.spec()), stage_(steps_.stage()), passages_(steps_), buffers_(steps_) {}

  absl::Status Run() {
    const plan::Program& program = steps_.program();
    for (size_t i = 0; i < program.size(); ++i) {
      switch (program[i].kind) {
        case plan::StepKind::kRun:
          RETURN_IF_ERROR(RunStep(i));
          break;
        case plan::StepKind::kSend:
          RETURN_IF_ERROR(buffers_.Send(i));
          break;
        case plan::StepKind::kReceive:
          if (program[i].buffer.in_slot) RETURN_IF_ERROR(passages_.ReceiveIntoSlot(i));
          RETURN_IF_ERROR(buffers_.Receive(i));
          break;
      }
    }
    RETURN_IF_ERROR(passages_.Finish());
    return buffers_.Finish();
  }

 private:
  absl::Status RunStep(size_t i) {
    const plan::Step& step = steps_.program()[i];
    const bool first = i == 0;
    const bool last = i + 1 == steps_.program().size();
    const plan::StagePlan::Ends& ends = stage_.ends[spec_.form];
    if (first != (step.segment == ends.first) || last != (step.segment == ends.last)) {
      return Internal("{}: a program starts with {} and ends with {}, each once", steps_.Name(i),
                      SegmentName(ends.first), SegmentName(ends.last));
    }
    if (first || last) return absl::OkStatus();
    ASSIGN_OR_RETURN(const plan::Pass pass, PassOf(i));
    const std::int32_t halves = steps_.Halves();
    if (step.microbatch % halves != 0 || (step.slot >= 0 && step.slot % halves != 0)) {
      return Internal("{} runs microbatch {} in slot {}, no first half in its slot", steps_.Name(i),
                      step.microbatch, step.slot);
    }
    for (std::int32_t half = 0; half < halves; ++half) {
      plan::Step of = step;
      of.microbatch += half;
      of.slot += of.slot >= 0 ? half : 0;
      if (of.microbatch >= spec_.microbatches)
        return Internal("{}: there are {} microbatches", steps_.Name(i), spec_.microbatches);
      RETURN_IF_ERROR(passages_.Pass(i, of, pass));
      RETURN_IF_ERROR(buffers_.Pass(i, of, pass));
    }
    return absl::OkStatus();
  }

  // Which pass of its chunk a step runs.
  absl::StatusOr<plan::Pass> PassOf(size_t i) const {
    const plan::Step& step = steps_.program()[i];
    const plan::Segment& segment = stage_.segments[static_cast<size_t>(step.segment)];
    const auto chunk = std::find_if(stage_.chunks.begin(), stage_.chunks.end(),
                                    [&](const plan::Chunk& c) { return c.index == segment.chunk; });
    if (chunk == stage_.chunks.end() || step.chunk != chunk->index) {
      return Internal("{} runs a segment of chunk {} for chunk {}", steps_.Name(i), segment.chunk,
                      step.chunk);
    }
    const plan::ChunkPasses& passes = chunk->passes[spec_.form];
    if (step.segment == passes.weights) return plan::Pass::kWeights;
    if (step.segment == passes.backward) return plan::Pass::kBackward;
    if (step.segment == passes.forward) return plan::Pass::kForward;
    return Internal("{} does not belong here", steps_.Name(i));
  }

  std::string SegmentName(std::int32_t segment) const {
    return segment < 0 ? "nothing" : stage_.segments[static_cast<size_t>(segment)].name;
  }

  const ProgramSteps steps_;
  const plan::ProgramSpec& spec_;
  const plan::StagePlan& stage_;
  Passages passages_;
  BorderBuffers buffers_;
};

}  // namespace

absl::Status VerifySteps(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (size_t p = 0; p < plan.programs.size(); ++p) {
      const ProgramId id = {static_cast<std::int32_t>(s), static_cast<std::int32_t>(p)};
      RETURN_IF_ERROR(ProgramWellFormed(plan, id));
      RETURN_IF_ERROR(StepVerifier(plan, id).Run());
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::verify

#include "engine/verify/text.h"

#include "engine/base/status.h"

namespace engine::verify {

std::string InstructionName(std::int32_t stage, const plan::Segment& segment, std::size_t instruction) {
  return fmt::format("stage {} {} #{} {}", stage, segment.name, instruction,
                     segment.instructions[instruction].name);
}

std::string StepText(const plan::Plan& plan, ProgramId id, std::size_t index) {
  const plan::Step& step = ProgramOf(plan, id)[index];
  std::string what;
  if (step.kind == plan::StepKind::kRun) {
    what =
        plan.stages[static_cast<std::size_t>(id.stage)].segments[static_cast<std::size_t>(step.segment)].name;
  } else {
    const plan::Transfer& transfer = plan.transfers[static_cast<std::size_t>(step.transfer)];
    what = fmt::format("{} {}", step.kind == plan::StepKind::kSend ? "send" : "receive",
                       NameOf(plan, transfer.value));
  }
  if (step.microbatch >= 0) what += fmt::format(", microbatch {}", step.microbatch);
  return fmt::format("{} step {} ({})", plan.ProgramName(id.program), index, what);
}

std::string StepName(const plan::Plan& plan, ProgramId id, std::size_t index) {
  return fmt::format("stage {} {}", id.stage, StepText(plan, id, index));
}

namespace {

std::int32_t StreamOf(const plan::Plan& plan, const plan::Step& step) {
  if (step.kind == plan::StepKind::kRun) return plan::kComputeStream;
  const bool backward = IsBackward(plan.transfers[static_cast<std::size_t>(step.transfer)]);
  if (step.kind == plan::StepKind::kSend) return backward ? plan::kSendPrevious : plan::kSendNext;
  return backward ? plan::kReceiveNext : plan::kReceivePrevious;
}

bool Inside(std::int64_t index, std::size_t size) {
  return index >= 0 && static_cast<std::size_t>(index) < size;
}

}  // namespace

absl::Status ProgramWellFormed(const plan::Plan& plan, ProgramId id) {
  const plan::StagePlan& stage = plan.stages[static_cast<std::size_t>(id.stage)];
  const plan::Program& program = ProgramOf(plan, id);
  const std::int64_t microbatches = plan.ProgramAt(id.program).microbatches;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const plan::Step& step = program[i];
    const bool known = step.kind == plan::StepKind::kRun ? Inside(step.segment, stage.segments.size())
                                                         : Inside(step.transfer, plan.transfers.size());
    if (!known)
      return Internal("stage {} step {} names a segment or transfer that does not exist", id.stage, i);
    const bool chunked = step.kind != plan::StepKind::kRun ||
                         stage.segments[static_cast<std::size_t>(step.segment)].chunk >= 0;
    if (chunked && (step.microbatch < 0 || step.microbatch >= microbatches)) {
      return Internal("{}: there are {} microbatches", StepName(plan, id, i), microbatches);
    }
    if (step.stream != StreamOf(plan, step)) {
      return Internal("{} is on stream {}, not {}", StepName(plan, id, i), step.stream, StreamOf(plan, step));
    }
    for (std::int32_t wait : step.waits) {
      if (!Inside(wait, i))
        return Internal("{} waits for step {}, which is not before it", StepName(plan, id, i), wait);
    }
  }
  return absl::OkStatus();
}

bool IsInTurns(const plan::StagePlan& stage, const plan::BufferRef& ref) {
  for (const plan::Bucket& bucket : stage.buckets) {
    if (bucket.gradient_shard.elements > 0 && ref.offset == bucket.gradient.offset) return true;
    const bool parameters = bucket.parameter_shard.elements > 0 && !bucket.gathered_at_begin();
    if (parameters && ref.offset == bucket.parameter.offset) return true;
  }
  return false;
}

std::string StateTitle(const plan::Plan& plan, std::size_t state) {
  const bool known = plan.optimizer != nullptr && state < plan.optimizer->states.size();
  return known ? std::string(plan.optimizer->states[state].title) : fmt::format("state {}", state);
}

}  // namespace engine::verify

#include "engine/plan/verify_text.h"

#include "engine/base/status.h"

namespace engine::plan {

std::string InstructionName(std::int32_t stage, const Segment& segment,
                            std::size_t instruction) {
  return fmt::format("stage {} {} #{} {}", stage, segment.name, instruction, segment.instructions[instruction].name);
}

std::string StepName(const Plan& plan, ProgramId id, std::size_t index) {
  const Step& step = ProgramOf(plan, id)[index];
  std::string what;
  if (step.kind == StepKind::kRun) {
    what = plan.stages[static_cast<std::size_t>(id.stage)].segments[static_cast<std::size_t>(step.segment)].name;
  } else {
    const Transfer& transfer = plan.transfers[static_cast<std::size_t>(step.transfer)];
    what = fmt::format("{} {}", step.kind == StepKind::kSend ? "send" : "receive", NameOf(plan, transfer.value));
  }
  if (step.microbatch >= 0) what += fmt::format(", microbatch {}", step.microbatch);
  return fmt::format("stage {} {} step {} ({})", id.stage, id.evaluate ? "evaluate" : "train", index, what);
}

}  // namespace engine::plan

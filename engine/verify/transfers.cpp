#include "engine/verify/transfers.h"

#include <absl/container/flat_hash_set.h>

#include <utility>
#include <vector>

#include "engine/verify/text.h"

namespace engine::verify {
namespace {

// Shows of one program that each transfer of each microbatch is sent by one step and received by one step.
class SendsAndReceives {
 public:
  SendsAndReceives(const plan::Plan& plan, std::int32_t program)
      : plan_(plan),
        program_(program),
        microbatches_(static_cast<size_t>(plan.ProgramAt(program).microbatches)),
        send_(plan.transfers.size() * microbatches_, -1),
        receive_(plan.transfers.size() * microbatches_, -1) {}

  // Notes the sends and receives of one stage.
  absl::Status Enter(std::int32_t stage) {
    RETURN_IF_ERROR(ProgramWellFormed(plan_, {stage, program_}));
    const plan::Program& program = ProgramOf(plan_, {stage, program_});
    for (size_t i = 0; i < program.size(); ++i) {
      const plan::Step& step = program[i];
      if (step.kind == plan::StepKind::kRun) continue;
      RETURN_IF_ERROR(Belongs(stage, i));
      std::int32_t& known = (step.kind == plan::StepKind::kSend ? send_ : receive_)[Cell(step)];
      if (known >= 0) {
        return Internal("{} repeats {}", Name(stage, i), Name(stage, static_cast<size_t>(known)));
      }
      known = static_cast<std::int32_t>(i);
    }
    return absl::OkStatus();
  }

  // When all stages have been entered: none lacks its counterpart.
  absl::Status Paired() const {
    for (size_t cell = 0; cell < send_.size(); ++cell) {
      if ((send_[cell] < 0) == (receive_[cell] < 0)) continue;
      const plan::Transfer& transfer = plan_.transfers[cell / microbatches_];
      const std::int32_t from = SenderOf(plan_, transfer);
      const std::int32_t to = ReceiverOf(plan_, transfer);
      if (receive_[cell] < 0) {
        return Internal("{} has no receive on stage {}", Name(from, static_cast<size_t>(send_[cell])), to);
      }
      return Internal("{} has no send on stage {}", Name(to, static_cast<size_t>(receive_[cell])), from);
    }
    return absl::OkStatus();
  }

 private:
  std::string Name(std::int32_t stage, size_t step) const { return StepName(plan_, {stage, program_}, step); }
  size_t Cell(const plan::Step& step) const {
    return static_cast<size_t>(step.transfer) * microbatches_ + static_cast<size_t>(step.microbatch);
  }

  // A step is on the stage that its transfer names, and has the bytes of its value.
  absl::Status Belongs(std::int32_t stage, size_t i) const {
    const plan::Step& step = ProgramOf(plan_, {stage, program_})[i];
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    const std::int32_t owner =
        step.kind == plan::StepKind::kSend ? SenderOf(plan_, transfer) : ReceiverOf(plan_, transfer);
    if (owner != stage) return Internal("{} belongs to stage {}", Name(stage, i), owner);
    const plan::LocalValue& value = plan_.values[static_cast<size_t>(transfer.value)];
    if (step.buffer.bytes() == transfer.bytes && transfer.bytes == value.local_bytes() &&
        step.buffer.dtype == value.dtype) {
      return absl::OkStatus();
    }
    return Internal("{}: its buffer has {} bytes of {}, the transfer {} and the value {} of {}",
                    Name(stage, i), step.buffer.bytes(), engine::Name(step.buffer.dtype), transfer.bytes,
                    value.local_bytes(), engine::Name(value.dtype));
  }

  const plan::Plan& plan_;
  const std::int32_t program_;
  const size_t microbatches_;                 // of the program
  std::vector<std::int32_t> send_, receive_;  // steps, by transfer and microbatch; −1: none
};

}  // namespace

absl::Status VerifyHops(const plan::Plan& plan) {
  absl::flat_hash_set<std::pair<std::int32_t, std::int32_t>> known;
  for (const plan::Transfer& transfer : plan.transfers) {
    const std::string& name = NameOf(plan, transfer.value);
    const std::int32_t step = transfer.to_chunk - transfer.from_chunk;
    if (step != 1 && step != -1) {
      return Internal("{} goes from chunk {} to chunk {}, which is no neighbour", name, transfer.from_chunk,
                      transfer.to_chunk);
    }
    if (!known.insert({transfer.value, transfer.to_chunk}).second)
      return Internal("{} comes to chunk {} twice", name, transfer.to_chunk);
  }
  return absl::OkStatus();
}

absl::Status VerifySendsAndReceives(const plan::Plan& plan, std::int32_t program) {
  SendsAndReceives steps(plan, program);
  for (size_t s = 0; s < plan.stages.size(); ++s) RETURN_IF_ERROR(steps.Enter(static_cast<std::int32_t>(s)));
  return steps.Paired();
}

}  // namespace engine::verify

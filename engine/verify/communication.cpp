#include <absl/container/flat_hash_map.h>

#include <deque>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/verify/collectives.h"
#include "engine/verify/deadlock.h"
#include "engine/verify/positions.h"
#include "engine/verify/transfers.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

// One program of all stages, walked together: shows that sends and receives come in the same order, that the
// stages enter their collectives alike, and that all stages come to the end. Its sends have their receives
// (VerifySendsAndReceives).
class Simulation {
 public:
  Simulation(const plan::Plan& plan, std::int32_t program) : plan_(plan), at_(plan, program) {}

  absl::Status Run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::int32_t s = 0; s < at_.Stages(); ++s) {
        ASSIGN_OR_RETURN(const bool moved, Advance(s));
        progress = progress || moved;
      }
    }
    for (std::int32_t s = 0; s < at_.Stages(); ++s) {
      if (!at_.Done(s)) return DeadlockAt(at_);
    }
    return absl::OkStatus();
  }

 private:
  // Walks one stage until it must wait. Whether it came any further.
  absl::StatusOr<bool> Advance(std::int32_t stage) {
    bool moved = false;
    while (!at_.Done(stage) && !at_.BlockedSend(stage)) {
      ASSIGN_OR_RETURN(const bool completed, Take(stage));
      if (!completed) break;
      at_.StepOn(stage);
      moved = true;
    }
    return moved || std::exchange(released_, false);
  }

  // Whether the stage's step has been taken; false: it waits for another stage.
  absl::StatusOr<bool> Take(std::int32_t stage) {
    const plan::Step& step = at_.Current(stage);
    if (step.kind == plan::StepKind::kRun) return Execute(stage);
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    const std::int32_t from = SenderOf(plan_, transfer);
    std::deque<std::int32_t>& channel = channels_[{from, ReceiverOf(plan_, transfer), IsBackward(transfer)}];
    if (step.kind == plan::StepKind::kSend) {
      channel.push_back(static_cast<std::int32_t>(at_.StepAt(stage)));
      return true;
    }
    if (channel.empty()) return false;
    const std::int32_t sent = channel.front();
    const plan::Step& send = at_.ProgramAt(from)[static_cast<size_t>(sent)];
    if (send.transfer != step.transfer || send.microbatch != step.microbatch) {
      return Internal("{} meets {}: the order of sends is not that of receives",
                      Name(stage, at_.StepAt(stage)), Name(from, static_cast<size_t>(sent)));
    }
    channel.pop_front();
    at_.CompleteSend(from, sent);
    return true;
  }

  // Whether the segment has run to its end; false: it waits in a collective for other stages.
  absl::StatusOr<bool> Execute(std::int32_t stage) {
    while (at_.HasSite(stage)) {
      at_.Arrive(stage);
      const std::vector<std::int32_t> members = at_.Members(stage);
      for (std::int32_t member : members) {
        if (!at_.Meets(stage, member)) return false;
      }
      for (std::int32_t member : members) RETURN_IF_ERROR(Alike(stage, member));
      for (std::int32_t member : members) at_.Leave(member);
      released_ = true;
    }
    return true;
  }

  // Two stages that meet run the same collective over the same elements.
  absl::Status Alike(std::int32_t stage, std::int32_t member) const {
    const plan::Instruction& a = at_.Site(stage);
    const plan::Instruction& b = at_.Site(member);
    if (a.collective() == b.collective() && a.reduction() == b.reduction() &&
        a.inputs[0].elements == b.inputs[0].elements && a.inputs[0].dtype == b.inputs[0].dtype) {
      return absl::OkStatus();
    }
    return Internal("{} ({} of {}[{}]) meets {} ({} of {}[{}])", at_.SiteName(stage), a.kernel(),
                    engine::Name(a.inputs[0].dtype), a.inputs[0].elements, at_.SiteName(member), b.kernel(),
                    engine::Name(b.inputs[0].dtype), b.inputs[0].elements);
  }

  std::string Name(std::int32_t stage, size_t step) const {
    return StepName(plan_, {stage, at_.program()}, step);
  }

  const plan::Plan& plan_;
  Positions at_;
  // Sends that are posted and not yet received, by (from, to, backward): each is one stream at both ends.
  absl::flat_hash_map<std::tuple<std::int32_t, std::int32_t, bool>, std::deque<std::int32_t>> channels_;
  bool released_ = false;  // a collective has let stages go on
};

}  // namespace

absl::Status VerifyCommunication(const plan::Plan& plan) {
  RETURN_IF_ERROR(VerifyHops(plan));
  RETURN_IF_ERROR(VerifyCollectives(plan));
  for (size_t p = 0; p < plan.programs.size(); ++p) {
    const std::int32_t program = static_cast<std::int32_t>(p);
    RETURN_IF_ERROR(VerifySendsAndReceives(plan, program));
    RETURN_IF_ERROR(Simulation(plan, program).Run());
  }
  return absl::OkStatus();
}

}  // namespace engine::verify

// What the parts of VerifySteps ask of one stage's program.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"
#include "engine/verify/text.h"

namespace engine::verify {

// The steps of one stage's program, which is well formed, and what follows from them alone: which is over
// when another starts, and which half of a pair of microbatches and which slot they are of.
class ProgramSteps {
 public:
  ProgramSteps(const plan::Plan& plan, ProgramId id);

  const plan::Plan& plan() const { return plan_; }
  ProgramId id() const { return id_; }
  const plan::ProgramSpec& spec() const { return plan_.ProgramAt(id_.program); }
  const plan::StagePlan& stage() const { return plan_.stages[static_cast<std::size_t>(id_.stage)]; }
  const plan::Program& program() const { return ProgramOf(plan_, id_); }

  std::string Name(std::size_t step) const { return StepName(plan_, id_, step); }
  std::string Name(std::int32_t step) const { return Name(static_cast<std::size_t>(step)); }

  // Whether step `first` has completed before step `then` starts, by this stage's streams and waits alone.
  bool Before(std::int32_t first, std::size_t then) const;

  const plan::Transfer& TransferAt(std::int32_t t) const {
    return plan_.transfers[static_cast<std::size_t>(t)];
  }
  const std::string& ValueName(std::int32_t transfer) const {
    return NameOf(plan_, TransferAt(transfer).value);
  }
  // The pass before which a transfer's value comes, or behind which it goes.
  plan::Pass PassOf(std::int32_t transfer) const {
    return IsBackward(TransferAt(transfer)) ? plan::Pass::kBackward : plan::Pass::kForward;
  }

  // Microbatches that a step runs, one after the other.
  std::int32_t Halves() const { return static_cast<std::int32_t>(plan_.HalvesOf(spec().form)); }
  // Buffers outside of slots are those of a half (PipelineBuffersOf).
  std::int32_t HalfOf(const plan::Step& step) const { return step.microbatch % Halves(); }
  // The slot of the microbatch that a step sends or receives: a step names the first of two.
  std::int32_t SlotOf(const plan::Step& step) const {
    return step.slot < 0 || step.kind == plan::StepKind::kRun ? step.slot : step.slot + HalfOf(step);
  }

 private:
  const plan::Plan& plan_;
  const ProgramId id_;
  // clock_[i][s]: 1 + the last step of stream s that has completed when step i has.
  std::vector<std::array<std::int32_t, plan::kStreams>> clock_;
};

}  // namespace engine::verify

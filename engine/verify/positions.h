// Where all stages are in one program while VerifyCommunication walks them together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/verify/text.h"

namespace engine::verify {

// The step that every stage is at, and, in a step whose segment has collectives over stages, which of these
// comes next (its site). Shows nothing by itself: the walk asks it what a stage may do, and moves it.
// The program is well formed on every stage.
class Positions {
 public:
  // Before the first step of every stage.
  Positions(const plan::Plan& plan, std::int32_t program);

  const plan::Plan& plan() const { return plan_; }
  std::int32_t program() const { return program_; }  // Plan::programs
  std::int32_t Stages() const { return static_cast<std::int32_t>(stages_.size()); }
  const plan::Program& ProgramAt(std::int32_t stage) const { return ProgramOf(plan_, {stage, program_}); }

  bool Done(std::int32_t stage) const { return StepAt(stage) == ProgramAt(stage).size(); }
  std::size_t StepAt(std::int32_t stage) const { return At(stage).step; }
  const plan::Step& Current(std::int32_t stage) const { return ProgramAt(stage)[StepAt(stage)]; }
  // The send of this stage that the current step waits for and that has not been received.
  std::optional<std::int32_t> BlockedSend(std::int32_t stage) const;

  // Whether the current step, a run, has still a collective over stages to go through.
  bool HasSite(std::int32_t stage) const;
  // That collective, and its name.
  const plan::Instruction& Site(std::int32_t stage) const;
  std::string SiteName(std::int32_t stage) const;
  // Stages that meet in the collective at which a stage is.
  std::vector<std::int32_t> Members(std::int32_t stage) const;
  // Whether `member` waits at a collective of the same group as the one at which `stage` is.
  bool Meets(std::int32_t stage, std::int32_t member) const;

  // The stage waits at its site for the others.
  void Arrive(std::int32_t stage) { At(stage).here = true; }
  // All have come to its site.
  void Leave(std::int32_t stage);
  // A stage's send has been received.
  void CompleteSend(std::int32_t stage, std::int32_t step) {
    At(stage).completed[static_cast<std::size_t>(step)] = true;
  }
  // To the next step. The one before has completed, unless it is a send.
  void StepOn(std::int32_t stage);

 private:
  struct Position {
    std::size_t step = 0;
    std::size_t site = 0;         // collective over stages that comes next in the step's segment
    bool here = false;            // it waits there for the others
    std::vector<bool> completed;  // by step
    std::vector<std::vector<std::size_t>> sites;  // by segment: instructions that span stages
  };

  Position& At(std::int32_t stage) { return stages_[static_cast<std::size_t>(stage)]; }
  const Position& At(std::int32_t stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  // The sites of the current step, a run.
  const std::vector<std::size_t>& Sites(std::int32_t stage) const {
    return At(stage).sites[static_cast<std::size_t>(Current(stage).segment)];
  }
  const plan::Segment& SegmentAt(std::int32_t stage) const;

  const plan::Plan& plan_;
  const std::int32_t program_;
  std::vector<Position> stages_;
};

}  // namespace engine::verify

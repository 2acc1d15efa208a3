// Breaking a good plan in one place: the checks of the verifier that are meant for it report it, and no
// other.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "engine/verify/verify.h"
#include "tests/plan/plans.h"

namespace engine::verify {

struct Check {
  char letter;
  absl::Status (*verify)(const plan::Plan&);
};
inline constexpr Check kChecks[] = {
    {'c', VerifyCoverage}, {'p', VerifyPlacements}, {'g', VerifyGradients},    {'z', VerifyShards},
    {'s', VerifySegments}, {'t', VerifySteps},      {'m', VerifyCommunication}};

// Breaks a copy; `letters` are the checks that must report it, no other may; the first of them with `text`.
inline void Mutate(const plan::Plan& good, const std::string& letters, const std::string& text,
                   const std::function<void(plan::Plan&)>& mutate) {
  CAPTURE(text);
  plan::Plan plan = good;
  mutate(plan);
  std::string reported;
  std::string first;
  for (const Check& check : kChecks) {
    const absl::Status status = check.verify(plan);
    if (status.ok()) continue;
    reported += check.letter;
    if (check.letter == letters[0]) first = Message(status);
    if (letters.find(check.letter) == std::string::npos)
      MESSAGE(std::string(1, check.letter) << ": " << Message(status));
  }
  std::string expected = letters;
  std::sort(expected.begin(), expected.end());
  std::sort(reported.begin(), reported.end());
  CHECK(reported == expected);
  CHECK_MESSAGE(first.find(text) != std::string::npos, first);
  CHECK_FALSE(Verify(plan, {}).ok());
}

// dp 2 · tp 2 · pp 2 with sequence parallelism and ZeRO-1, tied embeddings, 8 microbatches.
inline const plan::Plan& Good() {
  static const plan::Plan plan =
      plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2",
                             "parallelism.sequence_parallel=true", "parallelism.zero_stage=1"});
  return plan;
}

// dp 2 · tp 2 with sequence parallelism and ZeRO-1, halves of 8 microbatches in turns.
inline const plan::Plan& Overlapped() {
  static const plan::Plan plan =
      plan::TinyPlan(false, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.sequence_parallel=true",
                             "parallelism.zero_stage=1", "parallelism.overlap=on", "training.micro_batch=4"});
  return plan;
}

inline size_t FindStep(const plan::Program& program, plan::StepKind kind, int nth = 0) {
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == kind && nth-- == 0) return i;
  }
  FAIL("no such step");
  return 0;
}

// Erases a step and moves the waits of those after it.
inline void Erase(plan::Program* program, size_t at) {
  program->erase(program->begin() + static_cast<std::ptrdiff_t>(at));
  for (plan::Step& step : *program) {
    std::erase(step.waits, static_cast<std::int32_t>(at));
    for (std::int32_t& wait : step.waits) wait -= wait > static_cast<std::int32_t>(at) ? 1 : 0;
  }
}

inline plan::Segment& SegmentOf(plan::Plan& plan, size_t stage, std::string_view name) {
  for (plan::Segment& segment : plan.stages[stage].segments) {
    if (segment.name == name) return segment;
  }
  FAIL("no segment " << name);
  return plan.stages[stage].segments[0];
}

inline size_t Find(const plan::Segment& segment, std::string_view kernel, int nth = 0) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (segment.instructions[i].kernel() == kernel && nth-- == 0) return i;
  }
  FAIL("no " << kernel);
  return 0;
}

inline void Drop(plan::Segment& segment, std::string_view kernel, int nth = 0) {
  segment.instructions.erase(segment.instructions.begin() +
                             static_cast<std::ptrdiff_t>(Find(segment, kernel, nth)));
}

inline void Double(plan::Segment& segment, std::string_view kernel, int nth = 0) {
  const size_t i = Find(segment, kernel, nth);
  const plan::Instruction copy = segment.instructions[i];
  segment.instructions.insert(segment.instructions.begin() + static_cast<std::ptrdiff_t>(i), copy);
}

inline plan::Instruction& At(plan::Plan& plan, size_t stage, std::string_view segment,
                             std::string_view kernel, int nth = 0) {
  plan::Segment& found = SegmentOf(plan, stage, segment);
  return found.instructions[Find(found, kernel, nth)];
}

inline size_t Find(const plan::Segment& segment,
                   const std::function<bool(const plan::Instruction&)>& wanted) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    if (wanted(segment.instructions[i])) return i;
  }
  FAIL("no such instruction in " << segment.name);
  return 0;
}

// Changes the first wanted instruction of stage 0's segment.
using Wanted = std::function<bool(const plan::Instruction&)>;
inline std::function<void(plan::Plan&)> Edit(const std::string& segment, const Wanted& wanted,
                                             const std::function<void(plan::Instruction&)>& change) {
  return [=](plan::Plan& plan) {
    plan::Segment& of = SegmentOf(plan, 0, segment);
    change(of.instructions[Find(of, wanted)]);
  };
}

// Puts it before the one that it follows.
inline std::function<void(plan::Plan&)> MoveUp(const std::string& segment, const Wanted& wanted) {
  return [=](plan::Plan& plan) {
    plan::Segment& of = SegmentOf(plan, 0, segment);
    const size_t at = Find(of, wanted);
    std::swap(of.instructions[at], of.instructions[at - 1]);
  };
}

}  // namespace engine::verify

// A part of predict/predict.h: the clock of one stage's computation.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/predict/cost.h"
#include "engine/predict/predict.h"
#include "engine/predict/segment_player.h"

namespace engine::predict {

// What is played, and who hears of it. All must outlive what plays it.
struct PlayInputs {
  const plan::Plan& plan;
  const CostModel& costs;
  std::int32_t program = 0;                    // Plan::programs
  std::vector<PlayedEvent>* events = nullptr;  // null: none are noted

  std::int64_t microbatches() const { return plan.ProgramAt(program).microbatches; }
};

// Runs segments, or pieces of them, one behind the other, and waits in between. Knows what time it is, what exchange is
// under way beside computation, and what the time went into.
class Computation {
 public:
  Computation(const PlayInputs& inputs, std::int32_t stage);

  double now() const { return now_; }  // seconds
  const StageTime& time() const { return time_; }
  // Of its compute_s: by graph::Component, and at the end what belongs to none.
  std::vector<PassTimes> TimeByComponent() const;

  // `kind`: what the wait counts as.
  void WaitUntil(double until, double StageTime::*kind);
  // Instructions [begin, end) of the step's segment.
  void Run(const plan::Step& step, std::size_t begin, std::size_t end);
  // Waits for all exchange that is under way, and does what it leaves to compute.
  void JoinExchange();
  // An instruction of the step's segment that several stages carry out together, all from `begin` on.
  void RunTogether(const plan::Step& step, std::size_t instruction, double begin, double seconds);

 private:
  // What the plan's segments take; made when the segment is first run.
  const SegmentCosts& CostsOf(std::int32_t segment);
  // The piece is as long valid as nothing else is played.
  const PlayedPiece& Play(const plan::Step& step, std::size_t begin, std::size_t end);
  bool IsBackward(std::int32_t segment) const;
  // Kernels of so many runs of a piece of the segment.
  void AddKernels(const PlayedPiece& piece, std::int32_t segment, std::int64_t runs,
                  std::vector<PassTimes>* times) const;
  PassTimes& TimesOf(const plan::Instruction& instruction, std::vector<PassTimes>* times) const;

  // Segment, first instruction, whether of the last microbatch, what is under way.
  using Key = std::tuple<std::int32_t, std::size_t, bool, UnderWay::Key>;
  struct KnownPiece {
    PlayedPiece piece;
    std::int64_t runs = 0;
  };

  const plan::StagePlan& plan_;
  const CostModel& costs_;
  const std::int64_t microbatches_;  // of the program
  const std::int32_t stage_;
  std::vector<PlayedEvent>* events_;
  double now_ = 0;
  UnderWay under_way_;
  StageTime time_;
  std::vector<SegmentCosts> segment_costs_;
  absl::flat_hash_map<Key, KnownPiece> pieces_;  // that were played before, where no events are noted
  PlayedPiece noted_;                            // the last one, where they are
  std::vector<PassTimes> by_component_;          // of what is in no known piece
};

}  // namespace engine::predict

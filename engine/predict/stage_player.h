// A part of predict/predict.h: one stage's program, and the transfers that it shares with others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/predict/computation.h"
#include "engine/predict/cost.h"
#include "engine/predict/predict.h"

namespace engine::predict {

// When the sender and the receiver of each transfer are ready for each microbatch: what comes later of the two is when
// it begins.
class TransferMeetings {
 public:
  explicit TransferMeetings(const PlayInputs& inputs);

  // Notes when the side that runs the step is ready. When the transfer begins; nothing while the other side is not.
  std::optional<double> Arrive(const plan::Step& step, double ready);
  // What it takes.
  double Seconds(const plan::Step& step) const { return seconds_[static_cast<std::size_t>(step.transfer)]; }
  // The stage of the other side.
  std::int32_t PeerOf(const plan::Step& step) const;

 private:
  const plan::Plan& plan_;
  const std::size_t microbatches_;
  std::vector<std::optional<double>> sent_, received_;  // by transfer and microbatch
  std::vector<double> seconds_;                         // by transfer
};

// Plays the steps of one stage, those of a stream in order, each after those that it waits for. Where computation needs
// other stages (collectives over stages), it stops and waits to be told.
class StagePlayer {
 public:
  // `meetings`, which all stages share, must outlive it.
  StagePlayer(const PlayInputs& inputs, std::int32_t stage, TransferMeetings* meetings);

  // As far as it goes. *freed: gets the stages at the other end of transfers that were played.
  void Advance(std::vector<std::int32_t>* freed);
  // Whether all steps are played.
  bool Ended() const;

  // The collective at which computation waits for other stages; null where it does not.
  const plan::Instruction* Meeting() const;
  // It takes place, from `begin` on.
  void Meet(double begin, double seconds);

  double now() const { return computation_.now(); }
  // With transfers; a stage that has ended still waits for the others, which is not counted here.
  StageTime Time() const;
  std::vector<PassTimes> TimeByComponent() const { return computation_.TimeByComponent(); }

 private:
  // Whether the step at the head of the stream could be played.
  bool AdvanceStream(std::size_t stream, std::vector<std::int32_t>* freed);
  bool AdvanceRun(std::size_t index);
  // When all that the step waits for has ended, and not before `from`; nothing while some of it is not played.
  std::optional<double> ReadyFrom(const plan::Step& step, double from) const;
  const plan::Step& HeadOf(std::size_t stream) const { return program_[streams_[stream][next_[stream]]]; }

  const PlayInputs in_;
  const std::int32_t stage_;
  const plan::StagePlan& plan_;
  const plan::Program& program_;
  TransferMeetings* meetings_;
  Computation computation_;
  double transfer_s_ = 0;
  std::vector<std::optional<double>> end_;                        // of steps, where they are played
  std::array<std::vector<std::size_t>, plan::kStreams> streams_;  // steps
  std::array<std::size_t, plan::kStreams> next_ = {};
  std::array<double, plan::kStreams> free_ = {};  // when the stream's last step has ended
  std::size_t piece_ = 0;  // instruction of the step at the head of computation to go on with
  bool meets_ = false;     // it waits for other stages there
};

}  // namespace engine::predict

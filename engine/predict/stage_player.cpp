#include "engine/predict/stage_player.h"

#include <algorithm>

#include "engine/predict/segment_player.h"

namespace engine::predict {
namespace {

// What of it is played: where stages wait for each other, a segment is played in pieces.
bool CrossesStages(const plan::Plan& plan, const plan::Instruction& instruction) {
  return plan.mesh.pp > 1 && Exchanges(instruction) && instruction.group().SpansStages();
}

}  // namespace

TransferMeetings::TransferMeetings(const PlayInputs& inputs)
    : plan_(inputs.plan), microbatches_(static_cast<size_t>(inputs.microbatches())) {
  sent_.resize(plan_.transfers.size() * microbatches_);
  received_.resize(sent_.size());
  for (const plan::Transfer& transfer : plan_.transfers)
    seconds_.push_back(inputs.costs.TransferSeconds(transfer));
}

std::optional<double> TransferMeetings::Arrive(const plan::Step& step, double ready) {
  const size_t meeting =
      static_cast<size_t>(step.transfer) * microbatches_ + static_cast<size_t>(step.microbatch);
  const bool sends = step.kind == plan::StepKind::kSend;
  (sends ? sent_ : received_)[meeting] = ready;
  const std::optional<double>& peer = (sends ? received_ : sent_)[meeting];
  if (!peer.has_value()) return std::nullopt;
  return std::max(ready, *peer);
}

std::int32_t TransferMeetings::PeerOf(const plan::Step& step) const {
  const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
  const std::int32_t chunk = step.kind == plan::StepKind::kSend ? transfer.to_chunk : transfer.from_chunk;
  return plan_.chunk_stage[static_cast<size_t>(chunk)];
}

StagePlayer::StagePlayer(const PlayInputs& inputs, std::int32_t stage, TransferMeetings* meetings)
    : in_(inputs),
      stage_(stage),
      plan_(inputs.plan.stages[static_cast<size_t>(stage)]),
      program_(plan_.programs[static_cast<size_t>(inputs.program)]),
      meetings_(meetings),
      computation_(inputs, stage),
      end_(program_.size()) {
  for (size_t i = 0; i < program_.size(); ++i) {
    const plan::Step& step = program_[i];
    const std::int32_t stream = step.kind == plan::StepKind::kRun ? plan::kComputeStream : step.stream;
    streams_[static_cast<size_t>(stream)].push_back(i);
  }
}

void StagePlayer::Advance(std::vector<std::int32_t>* freed) {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stream = 0; stream < plan::kStreams; ++stream) {
      while (next_[stream] < streams_[stream].size() && AdvanceStream(stream, freed)) moved = true;
    }
  }
}

bool StagePlayer::Ended() const {
  for (size_t stream = 0; stream < plan::kStreams; ++stream) {
    if (next_[stream] < streams_[stream].size()) return false;
  }
  return true;
}

const plan::Instruction* StagePlayer::Meeting() const {
  if (!meets_) return nullptr;
  const std::int32_t segment = HeadOf(plan::kComputeStream).segment;
  return &plan_.segments[static_cast<size_t>(segment)].instructions[piece_];
}

void StagePlayer::Meet(double begin, double seconds) {
  computation_.RunTogether(HeadOf(plan::kComputeStream), piece_, begin, seconds);
  ++piece_;
  meets_ = false;
}

StageTime StagePlayer::Time() const {
  StageTime time = computation_.time();
  time.transfer_s = transfer_s_;
  return time;
}

std::optional<double> StagePlayer::ReadyFrom(const plan::Step& step, double from) const {
  double ready = from;
  for (std::int32_t wait : step.waits) {
    const std::optional<double>& end = end_[static_cast<size_t>(wait)];
    if (!end.has_value()) return std::nullopt;
    ready = std::max(ready, *end);
  }
  return ready;
}

bool StagePlayer::AdvanceStream(size_t stream, std::vector<std::int32_t>* freed) {
  const size_t index = streams_[stream][next_[stream]];
  if (stream == plan::kComputeStream) return !meets_ && AdvanceRun(index);
  const plan::Step& step = program_[index];
  const std::optional<double> ready = ReadyFrom(step, free_[stream]);
  if (!ready.has_value()) return false;
  const std::optional<double> begin = meetings_->Arrive(step, *ready);
  if (!begin.has_value()) return false;
  const double seconds = meetings_->Seconds(step);
  const double end = *begin + seconds;
  end_[index] = end;
  free_[stream] = end;
  freed->push_back(meetings_->PeerOf(step));
  transfer_s_ += seconds;
  if (in_.events != nullptr) {
    in_.events->push_back({.stage = stage_,
                           .stream = step.stream,
                           .begin_s = *begin,
                           .end_s = end,
                           .microbatch = step.microbatch});
  }
  ++next_[stream];
  return true;
}

bool StagePlayer::AdvanceRun(size_t index) {
  const plan::Step& step = program_[index];
  const bool update = step.segment == plan_.update();
  if (piece_ == 0) {
    const std::optional<double> ready = ReadyFrom(step, now());
    if (!ready.has_value()) return false;
    computation_.WaitUntil(*ready, &StageTime::bubble_s);
    if (update) computation_.JoinExchange();
  }
  const std::vector<plan::Instruction>& instructions =
      plan_.segments[static_cast<size_t>(step.segment)].instructions;
  size_t stop = piece_;
  while (stop < instructions.size() && !CrossesStages(in_.plan, instructions[stop])) ++stop;
  computation_.Run(step, piece_, stop);
  piece_ = stop;
  if (stop < instructions.size()) {
    meets_ = true;
    return false;
  }
  piece_ = 0;
  if (update) computation_.JoinExchange();
  end_[index] = now();
  ++next_[plan::kComputeStream];
  return true;
}

}  // namespace engine::predict

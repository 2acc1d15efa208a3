#include "engine/predict/computation.h"

#include <algorithm>

namespace engine::predict {

Computation::Computation(const PlayInputs& inputs, std::int32_t stage)
    : plan_(inputs.plan.stages[static_cast<size_t>(stage)]),
      costs_(inputs.costs),
      microbatches_(inputs.microbatches()),
      stage_(stage),
      events_(inputs.events),
      segment_costs_(plan_.segments.size()),
      by_component_(inputs.plan.components.size() + 1) {}

void Computation::WaitUntil(double until, double StageTime::*kind) {
  const double waited = std::max(0.0, until - now_);
  time_.*kind += waited;
  under_way_.Pass(waited);
  now_ = std::max(now_, until);
}

void Computation::Run(const plan::Step& step, size_t begin, size_t end) {
  const PlayedPiece& piece = Play(step, begin, end);
  now_ += piece.seconds;
  under_way_ = piece.after;
  const bool update = step.segment == plan_.update();
  (update ? time_.update_s : time_.compute_s) += piece.compute;
  time_.exposed_s += piece.exposed;
  time_.exchange_s += piece.exchange;
}

void Computation::JoinExchange() {
  WaitUntil(now_ + under_way_.busy(), &StageTime::exposed_s);
  const double finish = under_way_.finish();
  now_ += finish;
  time_.compute_s += finish;
  for (const UnderWay::Detached& detached : under_way_.detached)
    TimesOf(*detached.sum.exchange, &by_component_).backward_s += detached.sum.seconds;
  under_way_ = {};
}

void Computation::RunTogether(const plan::Step& step, size_t instruction, double begin, double seconds) {
  WaitUntil(begin, &StageTime::bubble_s);
  if (events_ != nullptr) {
    const plan::Segment& segment = plan_.segments[static_cast<size_t>(step.segment)];
    events_->push_back({.stage = stage_,
                        .stream = plan::kComputeStream,
                        .begin_s = begin,
                        .end_s = begin + seconds,
                        .segment = &segment,
                        .instruction = &segment.instructions[instruction]});
  }
  WaitUntil(begin + seconds, &StageTime::exposed_s);
  time_.exchange_s += seconds;
}

const SegmentCosts& Computation::CostsOf(std::int32_t segment) {
  SegmentCosts& costs = segment_costs_[static_cast<size_t>(segment)];
  const std::vector<plan::Instruction>& instructions =
      plan_.segments[static_cast<size_t>(segment)].instructions;
  if (costs.times.size() == instructions.size()) return costs;
  costs.await_s = costs_.AwaitSeconds();
  for (const plan::Instruction& instruction : instructions) {
    costs.times.push_back({.seconds = costs_.Seconds(instruction),
                           .finish = costs_.FinishSeconds(instruction),
                           .beside = costs_.BesideShare(instruction)});
  }
  return costs;
}

std::vector<PassTimes> Computation::TimeByComponent() const {
  std::vector<PassTimes> times = by_component_;
  for (const auto& [key, known] : pieces_) AddKernels(known.piece, std::get<0>(key), known.runs, &times);
  return times;
}

bool Computation::IsBackward(std::int32_t segment) const {
  return std::any_of(plan_.chunks.begin(), plan_.chunks.end(), [&](const plan::Chunk& chunk) {
    return chunk.train().backward == segment || chunk.train().weights == segment;
  });
}

void Computation::AddKernels(const PlayedPiece& piece, std::int32_t segment, std::int64_t runs,
                             std::vector<PassTimes>* times) const {
  if (segment == plan_.update()) return;
  const bool backward = IsBackward(segment);
  for (const auto& [instruction, seconds] : piece.kernels) {
    PassTimes& of = TimesOf(*instruction, times);
    (backward ? of.backward_s : of.forward_s) += static_cast<double>(runs) * seconds;
  }
}

PassTimes& Computation::TimesOf(const plan::Instruction& instruction, std::vector<PassTimes>* times) const {
  if (instruction.component == graph::kNoComponent) return times->back();
  return (*times)[static_cast<size_t>(instruction.component)];
}

const PlayedPiece& Computation::Play(const plan::Step& step, size_t begin, size_t end) {
  const plan::Segment& segment = plan_.segments[static_cast<size_t>(step.segment)];
  const SegmentCosts& costs = CostsOf(step.segment);
  if (events_ != nullptr) {
    const PlayedSegment noted{microbatches_, segment, costs, stage_, now_, events_};
    noted_ = PlaySegment(noted, step, begin, end, under_way_);
    AddKernels(noted_, step.segment, 1, &by_component_);
    return noted_;
  }
  const bool last = step.microbatch + (segment.halves ? 2 : 1) == microbatches_;
  const auto [known, fresh] = pieces_.try_emplace(Key(step.segment, begin, last, under_way_.ToKey()));
  if (fresh)
    known->second.piece = PlaySegment({microbatches_, segment, costs, stage_}, step, begin, end, under_way_);
  ++known->second.runs;
  return known->second.piece;
}

}  // namespace engine::predict

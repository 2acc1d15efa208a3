#include "engine/predict/segment_player.h"

namespace engine::predict {
namespace {

using Beside = UnderWay::Beside;
using BothBeside = UnderWay::BothBeside;
using Detached = UnderWay::Detached;
using Sum = UnderWay::Sum;

struct PlayedLane {
  const plan::Step* step = nullptr;
  size_t next = 0;
  bool joint = false;
  // Exchange that its next computation waits for, and finishes.
  struct Unfinished {
    size_t index = 0;
    double end = 0;
    Sum sum;
  };
  std::vector<Unfinished> unfinished = {};
};

class SegmentPlayer {
 public:
  explicit SegmentPlayer(const PlayedSegment& played)
      : microbatches_(played.microbatches),
        segment_(played.segment),
        costs_(played.costs),
        stage_(played.stage),
        at_(played.at),
        events_(played.events) {}

  PlayedPiece Play(std::span<const plan::Step> steps, size_t begin, size_t end, const UnderWay& before) {
    beside_ = before.beside;
    detached_ = before.detached;
    std::vector<PlayedLane> lanes;
    for (const plan::Step& step : steps) lanes.push_back({.step = &step, .next = begin});
    if (lanes.size() > 1) {
      PlayedLane joint{.step = &steps.back(), .next = begin, .joint = true};
      for (const std::uint8_t l : segment_.order) {
        PlayedLane& lane = l == plan::kJointLane ? joint : lanes[l];
        while (segment_.instructions[lane.next].joint != lane.joint) ++lane.next;
        if (lane.joint && segment_.instructions[lane.next].reads_lanes()) {
          for (PlayedLane& read : lanes) Finish(&read, lane.next);
        }
        Advance(&lane);
      }
    } else {
      while (lanes[0].next < end) Advance(&lanes[0]);
    }
    for (PlayedLane& lane : lanes) Finish(&lane);
    piece_.seconds = now_;
    piece_.after = {.beside = beside_, .detached = std::move(detached_)};
    piece_.after.Pass(now_);
    return piece_;
  }

 private:
  void Compute(double seconds, const plan::Instruction* instruction, const PlayedLane& lane,
               PlayedEvent::Part part = PlayedEvent::Part::kRun) {
    if (seconds == 0) return;
    const double took = Slowed(seconds);
    Note(plan::kComputeStream, now_, now_ + took, instruction, lane, part);
    piece_.compute += took;
    now_ += took;
  }
  // What computation takes from now on: while something is exchanged, it advances more slowly.
  double Slowed(double seconds) const {
    BothBeside beside = beside_;
    if (beside[0].until > beside[1].until) std::swap(beside[0], beside[1]);
    double took = 0;
    for (size_t i = 0; i < beside.size() && seconds > 0; ++i) {
      // The first to end is beside it together with the other one.
      const double speed = 1 - beside[i].share - (i == 0 ? beside[1].share : 0);
      const double slow = std::min(std::max(0.0, beside[i].until - now_ - took), seconds / speed);
      took += slow;
      seconds -= slow * speed;
    }
    return took + std::max(0.0, seconds);
  }
  void WaitUntil(double time, const plan::Instruction* exchange, const PlayedLane& lane) {
    time = std::max(time, now_ + costs_.await_s);
    if (time <= now_) return;
    Note(plan::kComputeStream, now_, time, exchange, lane, PlayedEvent::Part::kWait);
    piece_.exposed += time - now_;
    now_ = time;
  }
  // Of instructions before `end`.
  void Finish(PlayedLane* lane, size_t end = static_cast<size_t>(-1)) {
    size_t count = 0;
    while (count < lane->unfinished.size() && lane->unfinished[count].index < end) ++count;
    if (count == 0) return;
    const PlayedLane::Unfinished& last = lane->unfinished[count - 1];
    WaitUntil(last.end, last.sum.exchange, *lane);
    for (size_t i = 0; i < count; ++i) {
      const Sum& sum = lane->unfinished[i].sum;
      Compute(sum.seconds, sum.exchange, *lane, PlayedEvent::Part::kSum);
    }
    lane->unfinished.erase(lane->unfinished.begin(),
                           lane->unfinished.begin() + static_cast<std::ptrdiff_t>(count));
  }
  template <class Wanted>
  void FinishDetached(const PlayedLane& lane, const Wanted& wanted) {
    for (const Detached& detached : detached_) {
      if (!wanted(*detached.sum.exchange)) continue;
      WaitUntil(detached.end, detached.sum.exchange, lane);
      Compute(detached.sum.seconds, detached.sum.exchange, lane, PlayedEvent::Part::kSum);
    }
    std::erase_if(detached_, [&](const Detached& detached) { return wanted(*detached.sum.exchange); });
  }

  void Advance(PlayedLane* lane) {
    const size_t index = lane->next++;
    const plan::Instruction& instruction = segment_.instructions[index];
    const SegmentCosts::Times& times = costs_.times[index];
    if (!instruction.RunsIn(lane->step->microbatch, microbatches_)) return;
    const bool beside = instruction.stream != plan::kComputeStream;
    if (!beside) Finish(lane);
    if (!instruction.joins.empty()) {
      FinishDetached(*lane, [&](const plan::Instruction& i) { return i.name == instruction.joins; });
    }
    if (Exchanges(instruction)) piece_.exchange += times.seconds;
    if (beside) {
      Exchange(index, times, lane);
    } else if (Exchanges(instruction)) {
      Note(plan::kComputeStream, now_, now_ + times.seconds, &instruction, *lane);
      piece_.exposed += times.seconds;
      now_ += times.seconds;
      piece_.compute += times.finish;
      now_ += times.finish;
    } else {
      Compute(times.seconds, &instruction, *lane);
    }
  }

  void Exchange(size_t index, const SegmentCosts::Times& times, PlayedLane* lane) {
    const plan::Instruction& instruction = segment_.instructions[index];
    const bool finishes = std::any_of(lane->unfinished.begin(), lane->unfinished.end(), [&](const auto& u) {
      return plan::FinishesFirst(*u.sum.exchange, instruction);
    });
    if (finishes) Finish(lane);
    if (instruction.detached && instruction.scratch.elements > 0) {
      FinishDetached(*lane,
                     [&](const plan::Instruction& i) { return i.scratch.Overlaps(instruction.scratch); });
    }
    const bool of_bucket = instruction.stream == plan::kBucketStream;
    Beside& stream = beside_[of_bucket];
    const double begin = std::max(stream.until, now_);
    stream.until = begin + times.seconds;
    stream.share = times.beside;
    Share(begin, instruction.push, of_bucket);
    Note(instruction.stream, begin, stream.until, &instruction, *lane);
    if (instruction.detached) {
      detached_.push_back({{&instruction, times.finish}, stream.until});
      return;
    }
    lane->unfinished.push_back({index, stream.until, {&instruction, times.finish}});
  }

  // Pushes of both streams have one link: each takes as much longer as they are on it at once. What is
  // awaited of activations has been told its end.
  void Share(double begin, bool push, bool of_bucket) {
    Beside& buckets = beside_[1];
    Beside& activations = beside_[0];
    (of_bucket ? buckets : activations).push = push;
    if (!buckets.push || !activations.push) return;
    const double both = std::min(buckets.until, activations.until) - begin;
    if (both <= 0) return;
    if (!of_bucket) {
      for (Detached& one : detached_) one.end += one.end > begin ? both : 0;
    }
    buckets.until += both;
    activations.until += both;
  }

  void Note(std::int32_t stream, double begin, double end, const plan::Instruction* instruction,
            const PlayedLane& lane, PlayedEvent::Part part = PlayedEvent::Part::kRun) {
    if (events_ == nullptr) return;
    events_->push_back({.stage = stage_,
                        .stream = stream,
                        .begin_s = at_ + begin,
                        .end_s = at_ + end,
                        .segment = &segment_,
                        .instruction = instruction,
                        .microbatch = lane.step->microbatch,
                        .part = part});
  }

  const std::int64_t microbatches_;
  const plan::Segment& segment_;
  const SegmentCosts& costs_;
  const std::int32_t stage_;
  const double at_;
  std::vector<PlayedEvent>* events_;
  PlayedPiece piece_;
  double now_ = 0;     // computation has been done until
  BothBeside beside_;  // and exchange
  std::vector<Detached> detached_;
};

}  // namespace

PlayedPiece PlaySegment(const PlayedSegment& played, std::span<const plan::Step> steps, size_t begin,
                        size_t end, const UnderWay& before) {
  return SegmentPlayer(played).Play(steps, begin, end, before);
}

}  // namespace engine::predict

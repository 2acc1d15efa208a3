#include "engine/predict/segment_player.h"

namespace engine::predict {
namespace {

using Beside = UnderWay::Beside;
using BothBeside = UnderWay::BothBeside;
using Detached = UnderWay::Detached;
using Sum = UnderWay::Sum;

class SegmentPlayer {
 public:
  SegmentPlayer(const PlayedSegment& played, const plan::Step& step)
      : microbatches_(played.microbatches),
        segment_(played.segment),
        costs_(played.costs),
        stage_(played.stage),
        at_(played.at),
        events_(played.events),
        step_(step) {}

  PlayedPiece Play(size_t begin, size_t end, const UnderWay& before) {
    beside_ = before.beside;
    detached_ = before.detached;
    piece_.kernels.reserve(end - begin);
    for (size_t i = begin; i < end; ++i) Advance(i);
    for (const plan::Half half : {plan::Half::kFirst, plan::Half::kSecond})
      Finish([&](const Conversion& c) { return segment_.instructions[c.index].half == half; });
    piece_.seconds = now_;
    piece_.after = {.beside = beside_, .detached = std::move(detached_)};
    piece_.after.Pass(now_);
    return std::move(piece_);
  }

 private:
  // Beside computation, and nothing has waited for it.
  struct Conversion {
    size_t index = 0;
    double end = 0;
    Sum sum;
  };

  void Compute(double seconds, const plan::Instruction* instruction,
               PlayedEvent::Part part = PlayedEvent::Part::kRun) {
    if (seconds == 0) return;
    const double took = Slowed(seconds);
    Note(plan::kComputeStream, now_, now_ + took, instruction, part);
    AddKernel(took, instruction);
  }
  void AddKernel(double seconds, const plan::Instruction* instruction) {
    piece_.compute += seconds;
    piece_.kernels.emplace_back(instruction, seconds);
    now_ += seconds;
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
  void WaitUntil(double time, const plan::Instruction* exchange) {
    time = std::max(time, now_ + costs_.await_s);
    if (time <= now_) return;
    Note(plan::kComputeStream, now_, time, exchange, PlayedEvent::Part::kWait);
    piece_.exposed += time - now_;
    now_ = time;
  }
  template <class Wanted>
  void Finish(const Wanted& wanted) {
    std::vector<Conversion> finished;
    for (const Conversion& conversion : under_way_) {
      if (wanted(conversion)) finished.push_back(conversion);
    }
    if (finished.empty()) return;
    WaitUntil(finished.back().end, finished.back().sum.exchange);
    for (const Conversion& conversion : finished)
      Compute(conversion.sum.seconds, conversion.sum.exchange, PlayedEvent::Part::kSum);
    std::erase_if(under_way_, wanted);
  }
  template <class Wanted>
  void FinishDetached(const Wanted& wanted) {
    for (const Detached& detached : detached_) {
      if (!wanted(*detached.sum.exchange)) continue;
      WaitUntil(detached.end, detached.sum.exchange);
      Compute(detached.sum.seconds, detached.sum.exchange, PlayedEvent::Part::kSum);
    }
    std::erase_if(detached_, [&](const Detached& detached) { return wanted(*detached.sum.exchange); });
  }

  void Advance(size_t index) {
    const plan::Instruction& instruction = segment_.instructions[index];
    const SegmentCosts::Times& times = costs_.times[index];
    if (!instruction.RunsIn(step_.microbatch + (segment_.halves ? 1 : 0), microbatches_)) return;
    if (!instruction.waits.empty()) {
      Finish([&](const Conversion& c) {
        return std::find(instruction.waits.begin(), instruction.waits.end(),
                         static_cast<std::int32_t>(c.index)) != instruction.waits.end();
      });
    }
    if (instruction.waits_for_bucket >= 0) {
      FinishDetached([&](const plan::Instruction& i) {
        return i.AsBucketExchange()->bucket == instruction.waits_for_bucket;
      });
    }
    if (Exchanges(instruction)) piece_.exchange += times.seconds;
    if (instruction.stream != plan::kComputeStream) {
      Exchange(index, times);
    } else if (Exchanges(instruction)) {
      Note(plan::kComputeStream, now_, now_ + times.seconds, &instruction);
      piece_.exposed += times.seconds;
      now_ += times.seconds;
      AddKernel(times.finish, &instruction);
    } else {
      Compute(times.seconds, &instruction);
    }
  }

  void Exchange(size_t index, const SegmentCosts::Times& times) {
    const plan::Instruction& instruction = segment_.instructions[index];
    if (instruction.AsHostCopy() != nullptr) {  // a link of its own
      const double begin = std::max(host_until_, now_);
      host_until_ = begin + times.seconds;
      Note(instruction.stream, begin, host_until_, &instruction);
      under_way_.push_back({index, host_until_, {&instruction, 0}});
      return;
    }
    if (instruction.detached() && instruction.scratch.elements > 0) {
      FinishDetached([&](const plan::Instruction& i) { return i.scratch.Overlaps(instruction.scratch); });
    }
    const bool of_bucket = instruction.stream == plan::kBucketStream;
    Beside& stream = beside_[of_bucket];
    const double begin = std::max(stream.until, now_);
    stream.until = begin + times.seconds;
    stream.share = times.beside;
    Share(begin, instruction.push(), of_bucket);
    Note(instruction.stream, begin, stream.until, &instruction);
    if (instruction.detached()) {
      detached_.push_back({{&instruction, times.finish}, stream.until});
      return;
    }
    under_way_.push_back({index, stream.until, {&instruction, times.finish}});
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
            PlayedEvent::Part part = PlayedEvent::Part::kRun) {
    if (events_ == nullptr) return;
    events_->push_back({.stage = stage_,
                        .stream = stream,
                        .begin_s = at_ + begin,
                        .end_s = at_ + end,
                        .segment = &segment_,
                        .instruction = instruction,
                        .microbatch = step_.microbatch + (instruction->half == plan::Half::kSecond ? 1 : 0),
                        .part = part});
  }

  const std::int64_t microbatches_;
  const plan::Segment& segment_;
  const SegmentCosts& costs_;
  const std::int32_t stage_;
  const double at_;
  std::vector<PlayedEvent>* events_;
  const plan::Step& step_;
  PlayedPiece piece_;
  double now_ = 0;         // computation has been done until
  BothBeside beside_;      // and exchange
  double host_until_ = 0;  // and copies to and from the host, of which none outlives a piece
  std::vector<Detached> detached_;
  std::vector<Conversion> under_way_;
};

}  // namespace

PlayedPiece PlaySegment(const PlayedSegment& played, const plan::Step& step, size_t begin, size_t end,
                        const UnderWay& before) {
  return SegmentPlayer(played, step).Play(begin, end, before);
}

}  // namespace engine::predict

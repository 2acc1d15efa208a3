#include "engine/plan/predict.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/plan/cost.h"

namespace engine::plan {
namespace {

// Of all instructions of a segment, seconds.
struct SegmentCosts {
  struct Times {
    double seconds = 0;  // of the kernel or the exchange
    double finish = 0;   // that a pushed sum leaves to compute
    double beside = 0;   // share of its speed that computation loses beside the exchange
  };
  std::vector<Times> times;
  double await_s = 0;
};

bool Exchanges(const Instruction& instruction) {
  return instruction.collective != Collective::kNone && instruction.collective != Collective::kSlice;
}

// What of it is played: where stages wait for each other, a segment is played in pieces.
bool CrossesStages(const Plan& plan, const Instruction& instruction) {
  return plan.mesh.pp > 1 && Exchanges(instruction) &&
         (instruction.group.HasPp() || instruction.group.IsTie());
}

// What a pushed sum leaves to compute.
struct Sum {
  const Instruction* exchange = nullptr;
  double seconds = 0;
};

// Detached exchange that nothing has waited for yet, and when it ends.
struct Detached {
  Sum sum;
  double end = 0;
};

// Of a stream that exchanges behind computation.
struct Beside {
  double until = 0;  // when it has done all that it has
  double share = 0;  // of its speed, that computation loses until then
  bool push = false;
};
// kExchangeStream's and kBucketStream's.
using BothBeside = std::array<Beside, 2>;

// Exchange that is under way behind computation. Times from now.
struct UnderWay {
  BothBeside beside;
  std::vector<Detached> detached;

  void Pass(double seconds) {
    for (Beside& stream : beside) {
      stream.until = std::max(0.0, stream.until - seconds);
      if (stream.until == 0) stream.share = 0;
    }
    for (Detached& one : detached) one.end = std::max(0.0, one.end - seconds);
  }
  double busy() const { return std::max(beside[0].until, beside[1].until); }
  double finish() const {
    double seconds = 0;
    for (const Detached& one : detached) seconds += one.sum.seconds;
    return seconds;
  }
  // Equal for what goes on alike.
  using Key = std::pair<std::vector<double>, std::vector<const Instruction*>>;
  Key ToKey() const {
    Key key;
    for (const Beside& stream : beside) {
      const bool pushes = stream.push && stream.until > 0;
      key.first.insert(key.first.end(), {stream.until, stream.share, pushes ? 1.0 : 0.0});
    }
    for (const Detached& one : detached) {
      key.first.insert(key.first.end(), {one.end, one.sum.seconds});
      key.second.push_back(one.sum.exchange);
    }
    return key;
  }
};

// A piece of a segment, played. Times from its beginning.
struct Piece {
  double seconds = 0;  // computation's stream
  double compute = 0;  // of these, kernels
  double exposed = 0;  // and exchange that it waits for
  double exchange = 0;
  UnderWay after;
};

struct PlayedLane {
  const Step* step = nullptr;
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

// Walks a segment as executor::RankExecutor does.
class SegmentPlayer {
 public:
  SegmentPlayer(const Plan& plan, const Segment& segment, const SegmentCosts& costs, std::int32_t stage,
                double at, std::vector<PlayedEvent>* events)
      : plan_(plan), segment_(segment), costs_(costs), stage_(stage), at_(at), events_(events) {}

  // Instructions [begin, end) for the steps, which take turns where there are several.
  Piece Play(std::span<const Step> steps, size_t begin, size_t end, const UnderWay& before) {
    beside_ = before.beside;
    detached_ = before.detached;
    std::vector<PlayedLane> lanes;
    for (const Step& step : steps) lanes.push_back({.step = &step, .next = begin});
    if (lanes.size() > 1) {
      PlayedLane joint{.step = &steps.back(), .next = begin, .joint = true};
      for (const std::uint8_t l : segment_.order) {
        PlayedLane& lane = l == kJointLane ? joint : lanes[l];
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
  void Compute(double seconds, const Instruction* instruction, const PlayedLane& lane,
               PlayedEvent::Part part = PlayedEvent::Part::kRun) {
    if (seconds == 0) return;
    const double took = Slowed(seconds);
    Note(kComputeStream, now_, now_ + took, instruction, lane, part);
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
  void WaitUntil(double time, const Instruction* exchange, const PlayedLane& lane) {
    time = std::max(time, now_ + costs_.await_s);
    if (time <= now_) return;
    Note(kComputeStream, now_, time, exchange, lane, PlayedEvent::Part::kWait);
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
    const Instruction& instruction = segment_.instructions[index];
    const SegmentCosts::Times& times = costs_.times[index];
    if (!instruction.RunsIn(lane->step->microbatch, plan_.microbatches)) return;
    const bool beside = instruction.stream != kComputeStream;
    if (!beside) Finish(lane);
    if (!instruction.joins.empty()) {
      FinishDetached(*lane, [&](const Instruction& i) { return i.name == instruction.joins; });
    }
    if (Exchanges(instruction)) piece_.exchange += times.seconds;
    if (beside) {
      Exchange(index, times, lane);
    } else if (Exchanges(instruction)) {
      Note(kComputeStream, now_, now_ + times.seconds, &instruction, *lane);
      piece_.exposed += times.seconds;
      now_ += times.seconds;
      piece_.compute += times.finish;
      now_ += times.finish;
    } else {
      Compute(times.seconds, &instruction, *lane);
    }
  }

  void Exchange(size_t index, const SegmentCosts::Times& times, PlayedLane* lane) {
    const Instruction& instruction = segment_.instructions[index];
    const bool finishes = std::any_of(lane->unfinished.begin(), lane->unfinished.end(), [&](const auto& u) {
      return FinishesFirst(*u.sum.exchange, instruction);
    });
    if (finishes) Finish(lane);
    if (instruction.detached && instruction.scratch.elements > 0) {
      FinishDetached(*lane, [&](const Instruction& i) { return i.scratch.Overlaps(instruction.scratch); });
    }
    const bool of_bucket = instruction.stream == kBucketStream;
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

  void Note(std::int32_t stream, double begin, double end, const Instruction* instruction,
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

  const Plan& plan_;
  const Segment& segment_;
  const SegmentCosts& costs_;
  const std::int32_t stage_;
  const double at_;
  std::vector<PlayedEvent>* events_;
  Piece piece_;
  double now_ = 0;     // computation has been done until
  BothBeside beside_;  // and exchange
  std::vector<Detached> detached_;
};

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

class Player {
 public:
  Player(const Plan& plan, const CostModel& costs, std::vector<PlayedEvent>* events)
      : plan_(plan), costs_(costs), events_(events), stages_(plan.stages.size()) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      stage.plan = &plan.stages[s];
      stage.end.assign(stage.plan->train.size(), kUnknown);
      stage.costs.resize(stage.plan->segments.size());
      for (size_t i = 0; i < stage.plan->train.size(); ++i) {
        const Step& step = stage.plan->train[i];
        stage.streams[static_cast<size_t>(step.kind == StepKind::kRun ? kComputeStream : step.stream)]
            .push_back(i);
      }
    }
    const size_t meetings = plan.transfers.size() * static_cast<size_t>(plan.microbatches);
    sent_.assign(meetings, kUnknown);
    received_.assign(meetings, kUnknown);
    for (const Transfer& transfer : plan.transfers) transfer_s_.push_back(costs.TransferSeconds(transfer));
  }

  std::vector<StageTime> Play(double* end) {
    do {
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t s = 0; s < stages_.size(); ++s) {
          while (stages_[s].due) {
            moved = true;
            stages_[s].due = false;
            AdvanceStage(s);
          }
        }
      }
    } while (Meet());
    *end = 0;
    if (!Ended()) return std::vector<StageTime>(stages_.size());
    for (Stage& stage : stages_) *end = std::max(*end, stage.now);
    std::vector<StageTime> times;
    for (Stage& stage : stages_) {
      stage.time.bubble_s += *end - stage.now;
      times.push_back(stage.time);
    }
    return times;
  }

 private:
  struct Stage {
    const StagePlan* plan = nullptr;
    bool due = true;                                    // a step may go on that could not before
    double now = 0;                                     // of computation
    std::vector<double> end;                            // of steps; unknown: not played yet
    std::array<std::vector<size_t>, kStreams> streams;  // steps
    std::array<size_t, kStreams> next = {};
    std::array<double, kStreams> free = {};  // when the stream's last step has ended
    size_t piece = 0;    // instruction of the step at the head of computation to go on with
    bool meets = false;  // it waits for other stages there
    UnderWay under_way;
    std::vector<SegmentCosts> costs;
    StageTime time;
  };

  const SegmentCosts& CostsOf(Stage* stage, std::int32_t segment) {
    SegmentCosts& costs = stage->costs[static_cast<size_t>(segment)];
    const std::vector<Instruction>& instructions =
        stage->plan->segments[static_cast<size_t>(segment)].instructions;
    if (costs.times.size() == instructions.size()) return costs;
    costs.await_s = costs_.AwaitSeconds();
    for (const Instruction& instruction : instructions) {
      costs.times.push_back({.seconds = costs_.Seconds(instruction),
                             .finish = costs_.FinishSeconds(instruction),
                             .beside = costs_.BesideShare(instruction)});
    }
    return costs;
  }

  size_t MeetingOf(const Step& step) const {
    return static_cast<size_t>(step.transfer) * static_cast<size_t>(plan_.microbatches) +
           static_cast<size_t>(step.microbatch);
  }

  bool Ended() const {
    return std::all_of(stages_.begin(), stages_.end(), [](const Stage& stage) {
      for (size_t stream = 0; stream < kStreams; ++stream) {
        if (stage.next[stream] < stage.streams[stream].size()) return false;
      }
      return true;
    });
  }

  size_t PeerOf(const Step& step) const {
    const Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    const std::int32_t chunk = step.kind == StepKind::kSend ? transfer.to_chunk : transfer.from_chunk;
    return static_cast<size_t>(plan_.chunk_stage[static_cast<size_t>(chunk)]);
  }

  // As far as it goes.
  void AdvanceStage(size_t s) {
    Stage& stage = stages_[s];
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stream = 0; stream < kStreams; ++stream) {
        while (stage.next[stream] < stage.streams[stream].size() && AdvanceStream(s, stream)) moved = true;
      }
    }
  }

  bool AdvanceStream(size_t s, size_t stream) {
    Stage& stage = stages_[s];
    const size_t index = stage.streams[stream][stage.next[stream]];
    const Step& step = stage.plan->train[index];
    if (stream == kComputeStream) return !stage.meets && AdvanceRun(s, index);
    double ready = stage.free[stream];
    for (std::int32_t wait : step.waits) {
      const double end = stage.end[static_cast<size_t>(wait)];
      if (std::isnan(end)) return false;
      ready = std::max(ready, end);
    }
    const size_t meeting = MeetingOf(step);
    const bool sends = step.kind == StepKind::kSend;
    (sends ? sent_ : received_)[meeting] = ready;
    const double peer = (sends ? received_ : sent_)[meeting];
    if (std::isnan(peer)) return false;
    const double begin = std::max(ready, peer);
    const double seconds = transfer_s_[static_cast<size_t>(step.transfer)];
    stage.end[index] = stage.free[stream] = begin + seconds;
    stages_[PeerOf(step)].due = true;
    stage.time.transfer_s += seconds;
    if (events_ != nullptr) {
      events_->push_back({.stage = static_cast<std::int32_t>(s),
                          .stream = step.stream,
                          .begin_s = begin,
                          .end_s = begin + seconds,
                          .microbatch = step.microbatch});
    }
    ++stage.next[stream];
    return true;
  }

  bool AdvanceRun(size_t s, size_t index) {
    Stage& stage = stages_[s];
    const Program& program = stage.plan->train;
    size_t end = index + 1;
    while (program[end - 1].paired) ++end;
    const std::span<const Step> steps(&program[index], end - index);
    if (stage.piece == 0) {
      double ready = stage.now;
      for (const Step& step : steps) {
        for (std::int32_t wait : step.waits) {
          const double done = stage.end[static_cast<size_t>(wait)];
          if (std::isnan(done)) return false;
          ready = std::max(ready, done);
        }
      }
      Wait(&stage, ready, &StageTime::bubble_s);
      if (steps[0].segment == stage.plan->update) JoinExchange(&stage);
    }
    const Segment& segment = stage.plan->segments[static_cast<size_t>(steps[0].segment)];
    const size_t count = segment.instructions.size();
    size_t stop = stage.piece;
    while (stop < count && !CrossesStages(plan_, segment.instructions[stop])) ++stop;
    if (stop == count || steps.size() == 1) {
      Run(s, steps, stage.piece, stop);
    }
    stage.piece = stop;
    if (stop < count) {
      stage.meets = true;
      return false;
    }
    stage.piece = 0;
    if (steps[0].segment == stage.plan->update) JoinExchange(&stage);
    for (size_t i = index; i < end; ++i) stage.end[i] = stage.now;
    stage.next[kComputeStream] += steps.size();
    return true;
  }

  void Run(size_t s, std::span<const Step> steps, size_t begin, size_t end) {
    Stage& stage = stages_[s];
    const std::int32_t segment = steps[0].segment;
    const Segment& played = stage.plan->segments[static_cast<size_t>(segment)];
    const SegmentCosts& costs = CostsOf(&stage, segment);
    Piece piece;
    if (events_ != nullptr) {
      piece = SegmentPlayer(plan_, played, costs, static_cast<std::int32_t>(s), stage.now, events_)
                  .Play(steps, begin, end, stage.under_way);
    } else {
      const bool last = steps.back().microbatch + 1 == plan_.microbatches;
      const Key key(s, segment, begin, last, stage.under_way.ToKey());
      const auto [known, fresh] = pieces_.try_emplace(key);
      if (fresh) {
        known->second = SegmentPlayer(plan_, played, costs, static_cast<std::int32_t>(s), 0, nullptr)
                            .Play(steps, begin, end, stage.under_way);
      }
      piece = known->second;
    }
    stage.now += piece.seconds;
    stage.under_way = piece.after;
    const bool update = segment == stage.plan->update;
    (update ? stage.time.update_s : stage.time.compute_s) += piece.compute;
    stage.time.exposed_s += piece.exposed;
    stage.time.exchange_s += piece.exchange;
  }

  static void Wait(Stage* stage, double until, double StageTime::*kind) {
    stage->time.*kind += std::max(0.0, until - stage->now);
    const double waited = std::max(0.0, until - stage->now);
    stage->under_way.Pass(waited);
    stage->now = std::max(stage->now, until);
  }

  static void JoinExchange(Stage* stage) {
    Wait(stage, stage->now + stage->under_way.busy(), &StageTime::exposed_s);
    const double finish = stage->under_way.finish();
    stage->now += finish;
    stage->time.compute_s += finish;
    stage->under_way = {};
  }

  // Where all stages of a collective have come to it, it takes place.
  bool Meet() {
    bool moved = false;
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (!stages_[s].meets) continue;
      const Instruction& mine = MeetingInstruction(stages_[s]);
      std::vector<size_t> members;
      if (mine.group.IsTie()) {
        members = {0, stages_.size() - 1};
      } else {
        for (size_t other = 0; other < stages_.size(); ++other) members.push_back(other);
      }
      const bool all = std::all_of(members.begin(), members.end(), [&](size_t m) {
        return stages_[m].meets && MeetingInstruction(stages_[m]).group == mine.group;
      });
      if (!all) continue;
      double begin = 0;
      for (size_t m : members) begin = std::max(begin, stages_[m].now);
      const double seconds = costs_.Seconds(mine);
      for (size_t m : members) {
        Stage& stage = stages_[m];
        Wait(&stage, begin, &StageTime::bubble_s);
        NoteMeeting(m, begin, begin + seconds);
        Wait(&stage, begin + seconds, &StageTime::exposed_s);
        stage.time.exchange_s += seconds;
        ++stage.piece;
        stage.meets = false;
        stage.due = true;
      }
      moved = true;
    }
    return moved;
  }

  const Step& HeadOfComputation(const Stage& stage) const {
    return stage.plan->train[stage.streams[kComputeStream][stage.next[kComputeStream]]];
  }
  const Segment& MeetingSegment(const Stage& stage) const {
    return stage.plan->segments[static_cast<size_t>(HeadOfComputation(stage).segment)];
  }
  const Instruction& MeetingInstruction(const Stage& stage) const {
    return MeetingSegment(stage).instructions[stage.piece];
  }
  void NoteMeeting(size_t s, double begin, double end) {
    if (events_ == nullptr) return;
    events_->push_back({.stage = static_cast<std::int32_t>(s),
                        .stream = kComputeStream,
                        .begin_s = begin,
                        .end_s = end,
                        .segment = &MeetingSegment(stages_[s]),
                        .instruction = &MeetingInstruction(stages_[s])});
  }

  // Stage, segment, first instruction, whether of the last microbatch, what is under way.
  using Key = std::tuple<size_t, std::int32_t, size_t, bool, UnderWay::Key>;

  const Plan& plan_;
  const CostModel& costs_;
  std::vector<PlayedEvent>* events_;
  std::vector<Stage> stages_;
  std::vector<double> sent_, received_;  // when both sides were ready, by transfer and microbatch
  std::vector<double> transfer_s_;
  absl::flat_hash_map<Key, Piece> pieces_;
};

// FLOPs of products and attention of the forward passes, three times: a backward pass has two products for
// each. Head and loss in one are made with both their gradients, wherever they are.
double ModelFlops(const Plan& plan) {
  double flops = 0;
  for (const StagePlan& stage : plan.stages) {
    for (const Chunk& chunk : stage.chunks) {
      for (const std::int32_t segment : {chunk.forward, chunk.backward}) {
        if (segment < 0) continue;
        for (const Instruction& i : stage.segments[static_cast<size_t>(segment)].instructions) {
          if (i.kernel.starts_with("linear_cross_entropy")) {
            flops += i.flops;
          } else if (segment == chunk.forward &&
                     (i.kernel.starts_with("linear") || i.kernel.starts_with("attention"))) {
            flops += 3 * i.flops;
          }
        }
      }
    }
  }
  return flops * static_cast<double>(plan.microbatches * plan.mesh.ranks_per_stage());
}

}  // namespace

Prediction Predict(const Plan& plan, const recipe::Cluster& cluster, std::vector<PlayedEvent>* events) {
  const CostModel costs(plan, cluster);
  Prediction prediction;
  prediction.stages = Player(plan, costs, events).Play(&prediction.iteration_s);
  prediction.missing = costs.Missing();
  prediction.model_flops = ModelFlops(plan);
  if (prediction.iteration_s <= 0) return prediction;
  const double ranks = static_cast<double>(plan.mesh.world());
  prediction.tokens_per_s = static_cast<double>(plan.global_batch * plan.sequence) / prediction.iteration_s;
  if (cluster.peak_flops > 0) {
    prediction.mfu = prediction.model_flops / (prediction.iteration_s * ranks * cluster.peak_flops);
  }
  const StageTime* slowest = &prediction.stages[0];
  for (const StageTime& stage : prediction.stages) {
    prediction.bubble +=
        stage.bubble_s / prediction.iteration_s / static_cast<double>(prediction.stages.size());
    if (stage.compute_s + stage.update_s > slowest->compute_s + slowest->update_s) slowest = &stage;
  }
  prediction.exposed = slowest->exposed_s / prediction.iteration_s;
  if (events != nullptr) {
    std::stable_sort(events->begin(), events->end(),
                     [](const PlayedEvent& a, const PlayedEvent& b) { return a.begin_s < b.begin_s; });
  }
  return prediction;
}

}  // namespace engine::plan

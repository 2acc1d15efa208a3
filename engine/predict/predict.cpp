#include "engine/predict/predict.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/predict/cost.h"
#include "engine/predict/segment_player.h"

namespace engine::predict {
namespace {

// What of it is played: where stages wait for each other, a segment is played in pieces.
bool CrossesStages(const plan::Plan& plan, const plan::Instruction& instruction) {
  return plan.mesh.pp > 1 && Exchanges(instruction) && instruction.group().SpansStages();
}

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

class Player {
 public:
  // `program`: Plan::programs.
  Player(const plan::Plan& plan, const CostModel& costs, std::int32_t program,
         std::vector<PlayedEvent>* events)
      : plan_(plan),
        costs_(costs),
        microbatches_(plan.ProgramAt(program).microbatches),
        events_(events),
        stages_(plan.stages.size()) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      stage.plan = &plan.stages[s];
      stage.program = &stage.plan->programs[static_cast<size_t>(program)];
      stage.end.assign(stage.program->size(), kUnknown);
      stage.costs.resize(stage.plan->segments.size());
      for (size_t i = 0; i < stage.program->size(); ++i) {
        const plan::Step& step = (*stage.program)[i];
        stage
            .streams[static_cast<size_t>(step.kind == plan::StepKind::kRun ? plan::kComputeStream
                                                                           : step.stream)]
            .push_back(i);
      }
    }
    const size_t meetings = plan.transfers.size() * static_cast<size_t>(microbatches_);
    sent_.assign(meetings, kUnknown);
    received_.assign(meetings, kUnknown);
    for (const plan::Transfer& transfer : plan.transfers)
      transfer_s_.push_back(costs.TransferSeconds(transfer));
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
    const plan::StagePlan* plan = nullptr;
    const plan::Program* program = nullptr;
    bool due = true;                                          // a step may go on that could not before
    double now = 0;                                           // of computation
    std::vector<double> end;                                  // of steps; unknown: not played yet
    std::array<std::vector<size_t>, plan::kStreams> streams;  // steps
    std::array<size_t, plan::kStreams> next = {};
    std::array<double, plan::kStreams> free = {};  // when the stream's last step has ended
    size_t piece = 0;    // instruction of the step at the head of computation to go on with
    bool meets = false;  // it waits for other stages there
    UnderWay under_way;
    std::vector<SegmentCosts> costs;
    StageTime time;
  };

  const SegmentCosts& CostsOf(Stage* stage, std::int32_t segment) {
    SegmentCosts& costs = stage->costs[static_cast<size_t>(segment)];
    const std::vector<plan::Instruction>& instructions =
        stage->plan->segments[static_cast<size_t>(segment)].instructions;
    if (costs.times.size() == instructions.size()) return costs;
    costs.await_s = costs_.AwaitSeconds();
    for (const plan::Instruction& instruction : instructions) {
      costs.times.push_back({.seconds = costs_.Seconds(instruction),
                             .finish = costs_.FinishSeconds(instruction),
                             .beside = costs_.BesideShare(instruction)});
    }
    return costs;
  }

  size_t MeetingOf(const plan::Step& step) const {
    return static_cast<size_t>(step.transfer) * static_cast<size_t>(microbatches_) +
           static_cast<size_t>(step.microbatch);
  }

  bool Ended() const {
    return std::all_of(stages_.begin(), stages_.end(), [](const Stage& stage) {
      for (size_t stream = 0; stream < plan::kStreams; ++stream) {
        if (stage.next[stream] < stage.streams[stream].size()) return false;
      }
      return true;
    });
  }

  size_t PeerOf(const plan::Step& step) const {
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(step.transfer)];
    const std::int32_t chunk = step.kind == plan::StepKind::kSend ? transfer.to_chunk : transfer.from_chunk;
    return static_cast<size_t>(plan_.chunk_stage[static_cast<size_t>(chunk)]);
  }

  // As far as it goes.
  void AdvanceStage(size_t s) {
    Stage& stage = stages_[s];
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stream = 0; stream < plan::kStreams; ++stream) {
        while (stage.next[stream] < stage.streams[stream].size() && AdvanceStream(s, stream)) moved = true;
      }
    }
  }

  bool AdvanceStream(size_t s, size_t stream) {
    Stage& stage = stages_[s];
    const size_t index = stage.streams[stream][stage.next[stream]];
    const plan::Step& step = (*stage.program)[index];
    if (stream == plan::kComputeStream) return !stage.meets && AdvanceRun(s, index);
    double ready = stage.free[stream];
    for (std::int32_t wait : step.waits) {
      const double end = stage.end[static_cast<size_t>(wait)];
      if (std::isnan(end)) return false;
      ready = std::max(ready, end);
    }
    const size_t meeting = MeetingOf(step);
    const bool sends = step.kind == plan::StepKind::kSend;
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
    const plan::Step& step = (*stage.program)[index];
    if (stage.piece == 0) {
      double ready = stage.now;
      for (std::int32_t wait : step.waits) {
        const double done = stage.end[static_cast<size_t>(wait)];
        if (std::isnan(done)) return false;
        ready = std::max(ready, done);
      }
      Wait(&stage, ready, &StageTime::bubble_s);
      if (step.segment == stage.plan->update()) JoinExchange(&stage);
    }
    const plan::Segment& segment = stage.plan->segments[static_cast<size_t>(step.segment)];
    const size_t count = segment.instructions.size();
    size_t stop = stage.piece;
    while (stop < count && !CrossesStages(plan_, segment.instructions[stop])) ++stop;
    Run(s, step, stage.piece, stop);
    stage.piece = stop;
    if (stop < count) {
      stage.meets = true;
      return false;
    }
    stage.piece = 0;
    if (step.segment == stage.plan->update()) JoinExchange(&stage);
    stage.end[index] = stage.now;
    ++stage.next[plan::kComputeStream];
    return true;
  }

  void Run(size_t s, const plan::Step& step, size_t begin, size_t end) {
    Stage& stage = stages_[s];
    const std::int32_t segment = step.segment;
    const plan::Segment& played = stage.plan->segments[static_cast<size_t>(segment)];
    const SegmentCosts& costs = CostsOf(&stage, segment);
    PlayedPiece piece;
    if (events_ != nullptr) {
      const PlayedSegment noted{microbatches_, played, costs, static_cast<std::int32_t>(s),
                                stage.now,     events_};
      piece = PlaySegment(noted, step, begin, end, stage.under_way);
    } else {
      const bool last = step.microbatch + (played.halves ? 2 : 1) == microbatches_;
      const Key key(s, segment, begin, last, stage.under_way.ToKey());
      const auto [known, fresh] = pieces_.try_emplace(key);
      if (fresh) {
        known->second = PlaySegment({microbatches_, played, costs, static_cast<std::int32_t>(s)}, step, begin,
                                    end, stage.under_way);
      }
      piece = known->second;
    }
    stage.now += piece.seconds;
    stage.under_way = piece.after;
    const bool update = segment == stage.plan->update();
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
      const plan::Instruction& mine = MeetingInstruction(stages_[s]);
      std::vector<size_t> members;
      const plan::Group group = mine.group();
      for (size_t other = 0; other < stages_.size(); ++other) {
        const bool holds = std::find(group.holders.begin(), group.holders.end(),
                                     static_cast<std::int32_t>(other)) != group.holders.end();
        if (holds || !group.IsTie()) members.push_back(other);
      }
      const bool all = std::all_of(members.begin(), members.end(), [&](size_t m) {
        return stages_[m].meets && MeetingInstruction(stages_[m]).group() == mine.group();
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

  const plan::Step& HeadOfComputation(const Stage& stage) const {
    return (*stage.program)[stage.streams[plan::kComputeStream][stage.next[plan::kComputeStream]]];
  }
  const plan::Segment& MeetingSegment(const Stage& stage) const {
    return stage.plan->segments[static_cast<size_t>(HeadOfComputation(stage).segment)];
  }
  const plan::Instruction& MeetingInstruction(const Stage& stage) const {
    return MeetingSegment(stage).instructions[stage.piece];
  }
  void NoteMeeting(size_t s, double begin, double end) {
    if (events_ == nullptr) return;
    events_->push_back({.stage = static_cast<std::int32_t>(s),
                        .stream = plan::kComputeStream,
                        .begin_s = begin,
                        .end_s = end,
                        .segment = &MeetingSegment(stages_[s]),
                        .instruction = &MeetingInstruction(stages_[s])});
  }

  // Stage, segment, first instruction, whether of the last microbatch, what is under way.
  using Key = std::tuple<size_t, std::int32_t, size_t, bool, UnderWay::Key>;

  const plan::Plan& plan_;
  const CostModel& costs_;
  const std::int64_t microbatches_;  // of the program
  std::vector<PlayedEvent>* events_;
  std::vector<Stage> stages_;
  std::vector<double> sent_, received_;  // when both sides were ready, by transfer and microbatch
  std::vector<double> transfer_s_;
  absl::flat_hash_map<Key, PlayedPiece> pieces_;
};

// Calls visit(instruction, runs) for each instruction of the stage's forward, backward and weights passes.
// `runs`: how often it runs in an iteration.
template <typename Visit>
void ForEachPass(const plan::Plan& plan, const plan::StagePlan& stage, const Visit& visit) {
  for (const plan::Chunk& chunk : stage.chunks) {
    for (const std::int32_t segment :
         {chunk.train().forward, chunk.train().backward, chunk.train().weights}) {
      if (segment < 0) continue;
      const plan::Segment& pass = stage.segments[static_cast<size_t>(segment)];
      for (const plan::Instruction& i : pass.instructions)
        visit(i, static_cast<double>(plan.microbatches) / (pass.halves ? 2 : 1));
    }
  }
}

std::vector<SlowTime> SlowTimes(const plan::Plan& plan, const CostModel& costs, const CostModel& fast) {
  std::vector<SlowTime> most;
  double most_s = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    std::map<std::string_view, SlowTime> of;
    double all_s = 0;
    ForEachPass(plan, stage, [&](const plan::Instruction& i, double runs) {
      if (i.slow().kind == plan::SlowPath::Kind::kNone) return;
      SlowTime& time = of[i.slow().why];
      time.kind = i.slow().kind;
      time.why = i.slow().why;
      time.seconds += runs * costs.Seconds(i);
      time.fast_s += runs * fast.Seconds(i);
      all_s += runs * costs.Seconds(i);
    });
    if (all_s <= most_s) continue;
    most_s = all_s;
    most.clear();
    for (const auto& [why, time] : of) most.push_back(time);
  }
  std::sort(most.begin(), most.end(),
            [](const SlowTime& a, const SlowTime& b) { return a.seconds > b.seconds; });
  return most;
}

// FLOPs of products and attention of the forward passes, three times: a backward pass has two products for
// each. Head and loss in one are made with both their gradients, wherever they are.
double ModelFlops(const plan::Plan& plan) {
  double flops = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Chunk& chunk : stage.chunks) {
      for (const std::int32_t segment : {chunk.train().forward, chunk.train().backward}) {
        if (segment < 0) continue;
        const plan::Segment& pass = stage.segments[static_cast<size_t>(segment)];
        const double halves = pass.halves ? 2 : 1;
        for (const plan::Instruction& i : pass.instructions) {
          if (i.family() == graph::Family::kHead) {
            flops += i.work().product_flops / halves;
          } else if (segment == chunk.train().forward) {
            flops += 3 * i.work().product_flops / halves;
          }
        }
      }
    }
  }
  return flops * static_cast<double>(plan.microbatches * plan.mesh.ranks_per_stage());
}

}  // namespace

Prediction Predict(const plan::Plan& plan, const recipe::Cluster& cluster, std::vector<PlayedEvent>* events) {
  const std::int32_t program = plan.ProgramOf(plan::ProgramKind::kTrain);
  const CostModel costs(plan, cluster);
  Prediction prediction;
  prediction.stages = Player(plan, costs, program, events).Play(&prediction.iteration_s);
  prediction.missing = costs.Missing();
  prediction.fast_iteration_s = prediction.iteration_s;
  const CostModel fast(plan, cluster, CostModel::Kernels::kFast);
  prediction.slow = SlowTimes(plan, costs, fast);
  if (!prediction.slow.empty()) {
    Player(plan, fast, program, nullptr).Play(&prediction.fast_iteration_s);
  }
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

const char* Text(plan::SlowPath::Kind kind) {
  if (kind == plan::SlowPath::Kind::kReference) return "runs in reference kernels";
  return kind == plan::SlowPath::Kind::kMasked ? "computes the pairs that are masked, too" : "is fast";
}

double PredictProgram(const plan::Plan& plan, std::int32_t program, const recipe::Cluster& cluster) {
  const CostModel costs(plan, cluster);
  double seconds = 0;
  Player(plan, costs, program, nullptr).Play(&seconds);
  return seconds;
}

double PredictEvaluation(const plan::Plan& plan, const recipe::Cluster& cluster) {
  return PredictProgram(plan, plan.ProgramOf(plan::ProgramKind::kEvaluate), cluster);
}

}  // namespace engine::predict

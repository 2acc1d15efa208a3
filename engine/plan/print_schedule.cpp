#include "engine/plan/print_schedule.h"

#include <algorithm>

#include "engine/base/status.h"

namespace engine::plan {
namespace {

constexpr std::int64_t kForwardTime = 1;
constexpr std::int64_t kBackwardTime = 2;  // of all gradients

std::int64_t TimeOf(Pass pass, bool weights) {
  if (pass == Pass::kForward) return kForwardTime;
  return weights ? kBackwardTime / 2 : kBackwardTime;
}

// Halves that run in turns are one turn, of the microbatch that they are halves of.
std::vector<TimelineTurn> TurnsOf(const Plan& plan, const StagePlan& stage) {
  std::vector<TimelineTurn> turns;
  const bool trains = stage.update >= 0;
  const auto lanes = static_cast<std::int32_t>(trains ? plan.lanes : 1);
  for (const Step& step : trains ? stage.train : stage.evaluate) {
    if (step.kind != StepKind::kRun || step.chunk < 0 || step.paired) continue;
    const auto chunk = std::find_if(stage.chunks.begin(), stage.chunks.end(),
                                    [&](const Chunk& c) { return c.index == step.chunk; });
    Pass pass = Pass::kForward;
    if (trains && step.segment == chunk->backward) pass = Pass::kBackward;
    if (trains && step.segment == chunk->weights) pass = Pass::kWeights;
    turns.push_back({.pass = pass, .chunk = step.chunk, .microbatch = step.microbatch / lanes});
  }
  return turns;
}

// When each chunk has passed each microbatch; −1: not yet.
class Finished {
 public:
  Finished(std::size_t chunks, std::int64_t microbatches)
      : chunks_(chunks),
        microbatches_(static_cast<std::size_t>(microbatches)),
        at_(3 * chunks * microbatches_, -1) {}

  std::int64_t& At(Pass pass, std::int32_t chunk, std::int32_t microbatch) {
    const std::size_t row = static_cast<std::size_t>(pass) * chunks_ + static_cast<std::size_t>(chunk);
    return at_[row * microbatches_ + static_cast<std::size_t>(microbatch)];
  }

  // When the turn's input is there; −1: not yet known.
  std::int64_t Ready(const TimelineTurn& turn) {
    const auto passed = [&](Pass pass, std::int32_t chunk) { return At(pass, chunk, turn.microbatch); };
    if (turn.pass == Pass::kForward) return turn.chunk == 0 ? 0 : passed(Pass::kForward, turn.chunk - 1);
    if (turn.pass == Pass::kWeights) return passed(Pass::kBackward, turn.chunk);
    const bool last = static_cast<std::size_t>(turn.chunk) + 1 == chunks_;
    return last ? passed(Pass::kForward, turn.chunk) : passed(Pass::kBackward, turn.chunk + 1);
  }

 private:
  std::size_t chunks_;
  std::size_t microbatches_;
  std::vector<std::int64_t> at_;
};

}  // namespace

Timeline SimulateTimeline(const Plan& plan) {
  Timeline timeline;
  for (const StagePlan& stage : plan.stages) timeline.stages.push_back(TurnsOf(plan, stage));
  for (const auto& turns : timeline.stages) {
    for (const TimelineTurn& turn : turns) timeline.weights |= turn.pass == Pass::kWeights;
  }
  Finished finished(plan.chunk_stage.size(), plan.microbatches);
  std::vector<std::size_t> next(timeline.stages.size(), 0);
  std::vector<std::int64_t> free(timeline.stages.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
      for (; next[s] < timeline.stages[s].size(); ++next[s]) {
        TimelineTurn& turn = timeline.stages[s][next[s]];
        const std::int64_t ready = finished.Ready(turn);
        if (ready < 0) break;
        turn.start = std::max(ready, free[s]);
        turn.end = turn.start + TimeOf(turn.pass, timeline.weights);
        finished.At(turn.pass, turn.chunk, turn.microbatch) = turn.end;
        free[s] = turn.end;
        progress = true;
      }
    }
  }
  std::int64_t busy = 0;
  for (const auto& turns : timeline.stages) {
    for (const TimelineTurn& turn : turns) {
      busy += turn.end - turn.start;
      timeline.length = std::max(timeline.length, turn.end);
    }
  }
  const std::int64_t all = timeline.length * static_cast<std::int64_t>(timeline.stages.size());
  timeline.bubble = all > 0 ? 1.0 - static_cast<double>(busy) / static_cast<double>(all) : 0.0;
  return timeline;
}

std::string DrawTimeline(const Timeline& timeline, std::int64_t columns) {
  constexpr std::string_view kGap = " ... ";
  const bool whole = timeline.length <= columns;
  const std::int64_t head = whole ? timeline.length : (columns - static_cast<std::int64_t>(kGap.size())) / 2;
  std::string text;
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    std::string row(static_cast<std::size_t>(timeline.length), '.');
    for (const TimelineTurn& turn : timeline.stages[s]) {
      constexpr char kFirst[] = {'0', 'a', 'A'};
      const std::int32_t symbols = turn.pass == Pass::kForward ? 10 : 26;
      const char mark = static_cast<char>(kFirst[static_cast<int>(turn.pass)] + turn.microbatch % symbols);
      for (std::int64_t t = turn.start; t < turn.end; ++t) row[static_cast<std::size_t>(t)] = mark;
    }
    if (!whole) {
      const std::size_t part = static_cast<std::size_t>(head);
      row = row.substr(0, part) + std::string(kGap) + row.substr(row.size() - part);
    }
    text += fmt::format("  {:>3} {}\n", s, row);
  }
  return text;
}

}  // namespace engine::plan

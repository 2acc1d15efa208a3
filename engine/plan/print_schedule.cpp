#include "engine/plan/print_schedule.h"

#include <algorithm>

#include "engine/base/status.h"
#include "engine/plan/pass_clock.h"

namespace engine::plan {
namespace {

constexpr double kForwardTime = 1;
constexpr double kBackwardTime = 2;  // of all gradients

// Halves that run in turns are one turn, of the microbatch that they are halves of.
std::vector<Turn> TurnsOf(const Plan& plan, const StagePlan& stage) {
  std::vector<Turn> turns;
  const std::int32_t trains = plan.ProgramOf(kTrainForm);
  const std::int32_t program = trains >= 0 ? trains : plan.ProgramOf(kEvaluateForm);
  if (program < 0) return turns;
  const FormId form = plan.ProgramAt(program).form;
  const auto halves = static_cast<std::int32_t>(plan.HalvesOf(form));
  for (const Step& step : stage.programs[static_cast<std::size_t>(program)]) {
    if (step.kind != StepKind::kRun || step.chunk < 0) continue;
    const auto chunk = std::find_if(stage.chunks.begin(), stage.chunks.end(),
                                    [&](const Chunk& c) { return c.index == step.chunk; });
    Pass pass = Pass::kForward;
    if (step.segment == chunk->passes[form].backward) pass = Pass::kBackward;
    if (step.segment == chunk->passes[form].weights) pass = Pass::kWeights;
    turns.push_back({.pass = pass, .chunk = step.chunk, .microbatch = step.microbatch / halves});
  }
  return turns;
}

// How many microbatches each chunk holds at most; an evaluation keeps nothing of them.
std::vector<std::int64_t> SlotsOf(const Plan& plan) {
  std::vector<std::int64_t> slots(plan.chunk_stage.size(), plan.microbatches);
  for (const StagePlan& stage : plan.stages) {
    for (const Chunk& chunk : stage.chunks) {
      if (chunk.slots > 0) slots[static_cast<std::size_t>(chunk.index)] = chunk.slots;
    }
  }
  return slots;
}

}  // namespace

Timeline SimulateTimeline(const Plan& plan) {
  Timeline timeline;
  std::vector<std::vector<Turn>> turns;
  for (const StagePlan& stage : plan.stages) turns.push_back(TurnsOf(plan, stage));
  for (const auto& stage : turns) {
    for (const Turn& turn : stage) timeline.weights |= turn.pass == Pass::kWeights;
  }
  const std::size_t chunks = plan.chunk_stage.size();
  const double backward = timeline.weights ? kBackwardTime / 2 : kBackwardTime;
  std::vector<std::vector<PlayedTurn>> played;
  PlayTurns(turns, SlotsOf(plan), plan.microbatches,
            {.forward = std::vector<double>(chunks, kForwardTime),
             .backward = std::vector<double>(chunks, backward),
             .weights = std::vector<double>(chunks, backward)},
            &played);
  for (const auto& stage : played) {
    std::vector<TimelineTurn>& drawn = timeline.stages.emplace_back();
    for (const auto& [turn, begin, end] : stage) {
      drawn.push_back({.pass = turn.pass,
                       .chunk = turn.chunk,
                       .microbatch = turn.microbatch,
                       .start = static_cast<std::int64_t>(begin),
                       .end = static_cast<std::int64_t>(end)});
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

#include "engine/search/pass_schedule.h"

#include <algorithm>

#include "engine/plan/plan.h"

namespace engine::search {
namespace {

std::vector<plan::Turn> TurnsOf(const recipe::Parallelism& p, std::int64_t stage, std::int64_t microbatches) {
  if (p.virtual_stages > 1)
    return plan::InterleavedOneForwardOneBackward(p.pp, p.virtual_stages, stage, microbatches);
  if (DefersWeights(p)) return plan::ZeroBubble(p.pp, stage, microbatches);
  return plan::OneForwardOneBackward(p.pp, stage, microbatches);
}

// After so many the slowest stage sets the pace.
constexpr std::int64_t kSteadyMicrobatches = 24;

}  // namespace

bool DefersWeights(const recipe::Parallelism& parallelism) {
  return parallelism.schedule == plan::kZeroBubble;
}

PassSchedule MakeSchedule(const recipe::Parallelism& p, std::int64_t microbatches) {
  PassSchedule schedule;
  schedule.slots.assign(static_cast<size_t>(p.pp * p.virtual_stages), 0);
  schedule.period = p.pp;
  schedule.microbatches =
      std::min(microbatches, std::max<std::int64_t>(4, (kSteadyMicrobatches + p.pp - 1) / p.pp) * p.pp +
                                 microbatches % p.pp);
  for (std::int64_t stage = 0; stage < p.pp; ++stage) {
    std::vector<std::int64_t> held(schedule.slots.size(), 0);
    for (const plan::Turn& turn : TurnsOf(p, stage, microbatches)) {
      const size_t c = static_cast<size_t>(turn.chunk);
      const bool last =
          turn.pass == (p.schedule == plan::kZeroBubble ? plan::Pass::kWeights : plan::Pass::kBackward);
      if (turn.pass == plan::Pass::kForward) ++held[c];
      if (last) --held[c];
      schedule.slots[c] = std::max(schedule.slots[c], held[c]);
    }
    schedule.turns.push_back(TurnsOf(p, stage, schedule.microbatches));
    if (schedule.microbatches == microbatches) continue;
    schedule.fewer.push_back(TurnsOf(p, stage, schedule.microbatches - schedule.period));
  }
  return schedule;
}

std::vector<double> PlayPasses(const PassSchedule& schedule, const plan::PassTimes& times,
                               std::int64_t microbatches) {
  std::vector<double> ends = plan::PlayTurns(schedule.turns, schedule.slots, schedule.microbatches, times);
  if (schedule.fewer.empty()) return ends;
  const std::vector<double> fewer =
      plan::PlayTurns(schedule.fewer, schedule.slots, schedule.microbatches - schedule.period, times);
  const double periods =
      static_cast<double>(microbatches - schedule.microbatches) / static_cast<double>(schedule.period);
  for (size_t s = 0; s < ends.size(); ++s) ends[s] += periods * (ends[s] - fewer[s]);
  return ends;
}

}  // namespace engine::search

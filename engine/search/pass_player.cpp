#include "engine/search/pass_player.h"

#include <algorithm>
#include <utility>

#include "engine/plan/plan.h"

namespace engine::search {
namespace {

// When which microbatch has passed what, by chunk; a transfer takes place when the sender has made the
// value and the receiver has room for it, and the sender's next pass waits until it has.
class PassPlayer {
 public:
  PassPlayer(const PassTimes& times, const std::vector<std::int64_t>& slots, std::int64_t microbatches)
      : times_(times),
        slots_(slots),
        chunks_(times.forward_s.size()),
        count_(static_cast<size_t>(microbatches)) {
    for (std::vector<double>* of : {&forward_, &backward_, &released_, &sent_, &sent_back_})
      of->assign(chunks_ * count_, kUnknown);
  }

  // When each stage has run all its passes, and the exchange behind them.
  std::vector<double> Play(const std::vector<std::vector<plan::Turn>>& turns) {
    std::vector<double> now(turns.size(), 0.0);
    std::vector<size_t> next(turns.size(), 0);
    std::vector<double> exchanged(turns.size(), 0.0);
    std::vector<double> finish(turns.size(), 0.0);
    const bool deferred = turns[0].back().pass == plan::Pass::kWeights;
    OrderTransfers(turns);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < turns.size(); ++s) {
        for (; next[s] < turns[s].size(); ++next[s], moved = true) {
          const plan::Turn& turn = turns[s][next[s]];
          const size_t c = static_cast<size_t>(turn.chunk);
          const size_t m = static_cast<size_t>(turn.microbatch);
          const double ready = Ready(turn.pass, c, m);
          if (ready < 0) break;
          now[s] = std::max(now[s], ready);
          const bool leaves = turn.pass == (deferred ? plan::Pass::kWeights : plan::Pass::kBackward);
          PassTimes::Ending ending;
          const bool last = leaves && m + 1 == count_ && times_.ending;
          if (last) ending = times_.ending(c, std::max(0.0, exchanged[s] - now[s]));
          now[s] += ending.longer_s;
          if (turn.pass == plan::Pass::kForward) At(forward_, c, m) = now[s] += times_.forward_s[c];
          if (turn.pass == plan::Pass::kBackward) At(backward_, c, m) = now[s] += times_.backward_s[c];
          if (turn.pass == plan::Pass::kWeights) now[s] += times_.weights_s[c];
          if (leaves) At(released_, c, m) = now[s];
          if (last) exchanged[s] = now[s] + ending.busy_s;
          finish[s] += ending.finish_s;
        }
      }
    }
    for (size_t s = 0; s < now.size(); ++s) now[s] = std::max(now[s], exchanged[s]) + finish[s];
    return now;
  }

 private:
  static constexpr double kUnknown = -1;
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // Chunks of one stage send over one stream each way, in the order of their turns.
  void OrderTransfers(const std::vector<std::vector<plan::Turn>>& turns) {
    before_.assign(chunks_ * count_, kNone);
    before_back_.assign(chunks_ * count_, kNone);
    if (chunks_ == turns.size()) return;  // one chunk a stage waits for its own transfers anyhow
    for (const std::vector<plan::Turn>& stage : turns) {
      size_t sent = kNone;
      size_t sent_back = kNone;
      for (const plan::Turn& turn : stage) {
        const size_t c = static_cast<size_t>(turn.chunk);
        const size_t at = c * count_ + static_cast<size_t>(turn.microbatch);
        if (turn.pass == plan::Pass::kForward && c + 1 < chunks_) before_[at] = std::exchange(sent, at);
        if (turn.pass == plan::Pass::kBackward && c > 0) before_back_[at] = std::exchange(sent_back, at);
      }
    }
  }

  double& At(std::vector<double>& of, size_t chunk, size_t microbatch) {
    return of[chunk * count_ + microbatch];
  }

  static double Later(double a, double b) { return a < 0 || b < 0 ? kUnknown : std::max(a, b); }

  double Ready(plan::Pass pass, size_t c, size_t m) {
    if (pass == plan::Pass::kWeights) return 0;
    if (pass == plan::Pass::kForward) {
      const double input = c == 0 ? 0 : Sent(c - 1, m);
      const double buffer = m == 0 || c + 1 == chunks_ ? 0 : Sent(c, m - 1);
      return Later(input, buffer);
    }
    const double input = c + 1 == chunks_ ? At(forward_, c, m) : SentBack(c + 1, m);
    const double buffer = m == 0 || c == 0 ? 0 : SentBack(c, m - 1);
    return Later(input, buffer);
  }

  // To the next chunk, into a slot.
  double Sent(size_t c, size_t m) {
    double& sent = At(sent_, c, m);
    if (sent >= 0) return sent;
    const size_t slots = static_cast<size_t>(slots_[c + 1]);
    const size_t before = before_[c * count_ + m];
    const double begin = Later(Later(At(forward_, c, m), m < slots ? 0 : At(released_, c + 1, m - slots)),
                               before == kNone ? 0 : Sent(before / count_, before % count_));
    if (begin >= 0) sent = begin + times_.send_s[c];
    return sent;
  }

  // To the chunk before, into a buffer.
  double SentBack(size_t c, size_t m) {
    double& sent = At(sent_back_, c, m);
    if (sent >= 0) return sent;
    const size_t before = before_back_[c * count_ + m];
    const double begin = Later(Later(At(backward_, c, m), m == 0 ? 0 : At(backward_, c - 1, m - 1)),
                               before == kNone ? 0 : SentBack(before / count_, before % count_));
    if (begin >= 0) sent = begin + times_.send_back_s[c];
    return sent;
  }

  const PassTimes& times_;
  const std::vector<std::int64_t>& slots_;
  const size_t chunks_;
  const size_t count_;
  std::vector<double> forward_, backward_, released_, sent_, sent_back_;
  std::vector<size_t> before_,
      before_back_;  // the transfer that one follows on its stream
};

std::vector<plan::Turn> TurnsOf(const recipe::Parallelism& p, std::int64_t stage, std::int64_t microbatches) {
  if (p.virtual_stages > 1)
    return plan::InterleavedOneForwardOneBackward(p.pp, p.virtual_stages, stage, microbatches);
  if (p.schedule == plan::kZeroBubble) return plan::ZeroBubble(p.pp, stage, microbatches);
  return plan::OneForwardOneBackward(p.pp, stage, microbatches);
}

// After so many the slowest stage sets the pace.
constexpr std::int64_t kSteadyMicrobatches = 24;

}  // namespace

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

std::vector<double> PlayPasses(const PassSchedule& schedule, const PassTimes& times,
                               std::int64_t microbatches) {
  std::vector<double> ends = PassPlayer(times, schedule.slots, schedule.microbatches).Play(schedule.turns);
  if (schedule.fewer.empty()) return ends;
  const std::vector<double> fewer =
      PassPlayer(times, schedule.slots, schedule.microbatches - schedule.period).Play(schedule.fewer);
  const double periods =
      static_cast<double>(microbatches - schedule.microbatches) / static_cast<double>(schedule.period);
  for (size_t s = 0; s < ends.size(); ++s) ends[s] += periods * (ends[s] - fewer[s]);
  return ends;
}

}  // namespace engine::search

#include "engine/plan/pass_clock.h"

#include <algorithm>
#include <utility>

namespace engine::plan {
namespace {

// When which microbatch has passed what, by chunk.
class PassClock {
 public:
  PassClock(const PassTimes& times, const std::vector<std::int64_t>& slots, std::int64_t microbatches)
      : times_(times),
        slots_(slots),
        chunks_(times.forward.size()),
        count_(static_cast<size_t>(microbatches)) {
    for (std::vector<double>* of : {&forward_, &backward_, &released_, &sent_, &sent_back_})
      of->assign(chunks_ * count_, kUnknown);
  }

  // When each stage has run all its passes, and the exchange behind them.
  std::vector<double> Play(const std::vector<std::vector<Turn>>& turns,
                           std::vector<std::vector<PlayedTurn>>* played) {
    if (played != nullptr) played->resize(turns.size());
    std::vector<double> now(turns.size(), 0.0);
    std::vector<size_t> next(turns.size(), 0);
    std::vector<double> exchanged(turns.size(), 0.0);
    std::vector<double> finish(turns.size(), 0.0);
    const bool deferred = !turns[0].empty() && turns[0].back().pass == Pass::kWeights;
    OrderTransfers(turns);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < turns.size(); ++s) {
        for (; next[s] < turns[s].size(); ++next[s], moved = true) {
          const Turn& turn = turns[s][next[s]];
          const size_t c = static_cast<size_t>(turn.chunk);
          const size_t m = static_cast<size_t>(turn.microbatch);
          const double ready = Ready(turn.pass, c, m);
          if (ready < 0) break;
          now[s] = std::max(now[s], ready);
          const bool leaves = turn.pass == (deferred ? Pass::kWeights : Pass::kBackward);
          PassTimes::Ending ending;
          const bool last = leaves && m + 1 == count_ && times_.ending;
          if (last) ending = times_.ending(c, std::max(0.0, exchanged[s] - now[s]));
          const double begin = now[s];
          now[s] += ending.longer;
          if (turn.pass == Pass::kForward) At(forward_, c, m) = now[s] += times_.forward[c];
          if (turn.pass == Pass::kBackward) At(backward_, c, m) = now[s] += times_.backward[c];
          if (turn.pass == Pass::kWeights) now[s] += times_.weights[c];
          if (leaves) At(released_, c, m) = now[s];
          if (last) exchanged[s] = now[s] + ending.busy;
          finish[s] += ending.finish;
          if (played != nullptr) (*played)[s].push_back({turn, begin, now[s]});
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
  void OrderTransfers(const std::vector<std::vector<Turn>>& turns) {
    before_.assign(chunks_ * count_, kNone);
    before_back_.assign(chunks_ * count_, kNone);
    if (chunks_ == turns.size()) return;  // one chunk a stage waits for its own transfers anyhow
    for (const std::vector<Turn>& stage : turns) {
      size_t sent = kNone;
      size_t sent_back = kNone;
      for (const Turn& turn : stage) {
        const size_t c = static_cast<size_t>(turn.chunk);
        const size_t at = c * count_ + static_cast<size_t>(turn.microbatch);
        if (turn.pass == Pass::kForward && c + 1 < chunks_) before_[at] = std::exchange(sent, at);
        if (turn.pass == Pass::kBackward && c > 0) before_back_[at] = std::exchange(sent_back, at);
      }
    }
  }

  double& At(std::vector<double>& of, size_t chunk, size_t microbatch) {
    return of[chunk * count_ + microbatch];
  }

  static double Later(double a, double b) { return a < 0 || b < 0 ? kUnknown : std::max(a, b); }

  double Ready(Pass pass, size_t c, size_t m) {
    if (pass == Pass::kWeights) return 0;
    if (pass == Pass::kForward) {
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
    if (begin >= 0) sent = begin + (times_.send.empty() ? 0 : times_.send[c]);
    return sent;
  }

  // To the chunk before, into a buffer.
  double SentBack(size_t c, size_t m) {
    double& sent = At(sent_back_, c, m);
    if (sent >= 0) return sent;
    const size_t before = before_back_[c * count_ + m];
    const double begin = Later(Later(At(backward_, c, m), m == 0 ? 0 : At(backward_, c - 1, m - 1)),
                               before == kNone ? 0 : SentBack(before / count_, before % count_));
    if (begin >= 0) sent = begin + (times_.send_back.empty() ? 0 : times_.send_back[c]);
    return sent;
  }

  const PassTimes& times_;
  const std::vector<std::int64_t>& slots_;
  const size_t chunks_;
  const size_t count_;
  std::vector<double> forward_, backward_, released_, sent_, sent_back_;
  std::vector<size_t> before_, before_back_;  // the transfer that one follows on its stream
};

}  // namespace

std::vector<double> PlayTurns(const std::vector<std::vector<Turn>>& turns,
                              const std::vector<std::int64_t>& slots, std::int64_t microbatches,
                              const PassTimes& times, std::vector<std::vector<PlayedTurn>>* played) {
  return PassClock(times, slots, microbatches).Play(turns, played);
}

}  // namespace engine::plan

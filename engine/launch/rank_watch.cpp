#include "engine/launch/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "engine/base/print.h"
#include "engine/launch/message.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

constexpr std::size_t kMostNamed = 20;  // ranks in a message

}  // namespace

RankWatch::RankWatch(const RendezvousOptions& options, Members& members)
    : options_(options), tick_(TickOf(options)), members_(members), standings_(members.seats().size()) {}

void RankWatch::Hear(std::int64_t rank) { StandingOf(rank).silent_ticks = 0; }

void RankWatch::TakeProgress(std::int64_t rank, const std::vector<std::string>& fields) {
  Standing& standing = StandingOf(rank);
  const std::int64_t counter = NumberOf(fields[0]);
  if (counter != standing.counter) standing.still_ticks = 0;
  standing.counter = counter;
  standing.at = fields[1];
  standing.may_stand_still = fields[2] == "1";
}

void RankWatch::Tick(std::int64_t crowded_out) {
  if (!members_.reason().empty()) return;
  ++ticks_;
  if (!members_.has_started() && ticks_ * tick_ > options_.join_timeout) return EndForMissing(crowded_out);
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    const Seat& seat = members_.seat(rank);
    if (seat.connection == nullptr || seat.left) continue;
    Standing& standing = StandingOf(rank);
    ++standing.still_ticks;
    if (++standing.silent_ticks * tick_ > options_.heartbeat_timeout) {
      members_.Lose(rank, fmt::format("not heard of for {}", Text(options_.heartbeat_timeout)));
    }
  }
  members_.SendToAll(MessageKind::kAlive, {});
  if (members_.has_started() && options_.hang_timeout.count() > 0) EndIfHanging();
}

void RankWatch::EndForMissing(std::int64_t crowded_out) {
  std::string ranks;
  std::size_t count = 0;
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    if (members_.seat(rank).connection != nullptr || ++count > kMostNamed) continue;
    ranks += (count == 1 ? "" : ", ") + std::to_string(rank);
  }
  if (count > kMostNamed) ranks += fmt::format(" and {} others", count - kMostNamed);
  too_late_ = true;
  std::string crowd;
  if (crowded_out > 0) {
    crowd = fmt::format(
        "; strangers crowd the port: {} connections that had not said who they are were dropped to make "
        "room for newer ones",
        crowded_out);
  }
  members_.End(fmt::format("rank{} {} did not come within {}{}", count == 1 ? "" : "s", ranks,
                           Text(options_.join_timeout), crowd));
}

bool RankWatch::AllStandStill() const {
  for (std::size_t rank = 0; rank < standings_.size(); ++rank) {
    const bool stands = standings_[rank].still_ticks * tick_ > options_.hang_timeout;
    if (members_.seats()[rank].left || !stands) return false;
  }
  return true;
}

// Where one rank stands still, the others soon wait for it; so the run hangs when nobody gets on. Of a rank
// at work of its own nobody knows how long that takes: then it is only said, once, whom all wait for.
void RankWatch::EndIfHanging() {
  if (!AllStandStill()) {
    told_of_waiting_ = false;
    return;
  }
  std::vector<std::int64_t> alone;
  std::vector<std::int64_t> all;
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    if (StandingOf(rank).may_stand_still) alone.push_back(rank);
    all.push_back(rank);
  }
  if (alone.empty()) {
    return members_.End(fmt::format("the run hangs: no rank got on for {}", Text(options_.hang_timeout)),
                        Table(all));
  }
  if (!std::exchange(told_of_waiting_, true)) {
    Print(stderr, "note: no rank got on for {}; waited for without end:{}\n", Text(options_.hang_timeout),
          Table(alone));
  }
}

// What each of these is at; of very many, those that have stood still longest.
std::string RankWatch::Table(std::vector<std::int64_t> ranks) const {
  const auto standing_of = [this](std::int64_t rank) -> const Standing& {
    return standings_[static_cast<std::size_t>(rank)];
  };
  const auto longest = [&](std::int64_t a, std::int64_t b) {
    return standing_of(a).still_ticks > standing_of(b).still_ticks;
  };
  const std::size_t count = ranks.size();
  if (count > kMostNamed) {
    std::stable_sort(ranks.begin(), ranks.end(), longest);
    ranks.resize(kMostNamed);
  }
  std::string table;
  for (const std::int64_t rank : ranks) {
    const Standing& standing = standing_of(rank);
    const auto since = std::chrono::duration_cast<Milliseconds>(standing.still_ticks * tick_);
    table +=
        fmt::format("\n    {}: for {} at {}", members_.seat(rank).facts.Name(), Text(since), standing.at);
  }
  if (count > kMostNamed) table += fmt::format("\n    and {} others, for less long", count - kMostNamed);
  return table;
}

}  // namespace engine::launch

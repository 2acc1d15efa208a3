#include "engine/launch/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "engine/base/print.h"
#include "engine/launch/handshake.h"
#include "engine/launch/message.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

constexpr std::size_t kMostNamed = 20;                         // ranks in a message
constexpr Milliseconds kToldAfter = std::chrono::seconds(60);  // that ranks stand still as they may

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
  standing.limit = fields[2].empty() ? std::nullopt : std::optional(Milliseconds(NumberOf(fields[2])));
  standing.waits = fields[3] == "1";
}

void RankWatch::Tick(std::int64_t crowded_out, bool has_refused_token) {
  if (!members_.reason().empty()) return;
  ++ticks_;
  if (!members_.has_started() && ticks_ * tick_ > options_.join_timeout)
    return EndForMissing(crowded_out, has_refused_token);
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
  if (members_.has_started() && options_.hang_timeout != Milliseconds(0)) EndIfHanging();
}

void RankWatch::EndForMissing(std::int64_t crowded_out, bool has_refused_token) {
  std::string ranks;
  std::size_t count = 0;
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    if (members_.seat(rank).connection != nullptr || ++count > kMostNamed) continue;
    ranks += (count == 1 ? "" : ", ") + std::to_string(rank);
  }
  if (count > kMostNamed) ranks += fmt::format(" and {} others", count - kMostNamed);
  too_late_ = true;
  std::string others;
  if (has_refused_token)
    others = fmt::format("; somebody came with another token, and was refused: {}", kTokenRule);
  if (crowded_out > 0) {
    others += fmt::format(
        "; strangers crowd the port: {} connections that had not said who they are were dropped to make "
        "room for newer ones",
        crowded_out);
  }
  members_.End(fmt::format("rank{} {} did not come within {}{}", count == 1 ? "" : "s", ranks,
                           Text(options_.join_timeout), others));
}

Milliseconds RankWatch::StillOf(std::int64_t rank) const {
  return std::chrono::duration_cast<Milliseconds>(standings_[static_cast<std::size_t>(rank)].still_ticks *
                                                  tick_);
}

bool RankWatch::AllStandStill(Milliseconds longer_than) const {
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    if (members_.seat(rank).left || StillOf(rank) <= longer_than) return false;
  }
  return true;
}

// Where one rank stands still, the others soon wait for it; so the run hangs when nobody gets on for longer than what each is at may
// take. Who is waited for longer than that of others is only said, once.
void RankWatch::EndIfHanging() {
  std::vector<std::int64_t> patient;
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    if (members_.seat(rank).left) return;
    const std::optional<Milliseconds>& limit = StandingOf(rank).limit;
    if (!limit || StillOf(rank) <= *limit) patient.push_back(rank);
  }
  if (patient.empty()) return EndHanging();
  const Milliseconds told_after = options_.hang_timeout.value_or(kToldAfter);
  if (!AllStandStill(told_after)) {
    told_of_waiting_ = false;
    return;
  }
  if (!std::exchange(told_of_waiting_, true)) {
    Print(stderr, "note: no rank got on for {}; waited for:{}\n", Text(told_after), Table(patient));
  }
}

void RankWatch::EndHanging() {
  Milliseconds longest(0);
  std::vector<std::int64_t> all;
  std::vector<std::int64_t> to_blame;  // who waits for nobody
  for (std::int64_t rank = 0; rank < members_.world(); ++rank) {
    longest = std::max(longest, *StandingOf(rank).limit);
    all.push_back(rank);
    if (!StandingOf(rank).waits) to_blame.push_back(rank);
  }
  std::string reason = fmt::format("the run hangs: no rank got on for {}", Text(longest));
  if (to_blame.size() == 1 && all.size() > 1) {
    reason += fmt::format("; all others wait for {}", members_.seat(to_blame[0]).facts.Name());
  }
  members_.End(reason, Table(all));
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
    table += fmt::format("\n    {}: for {} at {}", members_.seat(rank).facts.Name(), Text(StillOf(rank)),
                         standing.at);
  }
  if (count > kMostNamed) table += fmt::format("\n    and {} others, for less long", count - kMostNamed);
  return table;
}

}  // namespace engine::launch

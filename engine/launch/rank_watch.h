// The server's watch over the ranks of a run: who has not come in time, who is silent, and whether the run
// hangs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/members.h"
#include "engine/launch/rendezvous.h"

namespace engine::launch {

// Silence is counted in ticks of the server's loop, so a server's process that was stopped as a whole blames
// nobody for it. One thread calls everything here.
class RankWatch {
 public:
  // `members` outlives this.
  RankWatch(const RendezvousOptions& options, Members& members);

  Milliseconds tick() const { return tick_; }
  // Something has come from this rank.
  void Hear(std::int64_t rank);
  // What the rank says of its progress (MessageKind::kProgress).
  void TakeProgress(std::int64_t rank, const std::vector<std::string>& fields);
  // A tick has passed: ends the run for ranks that are missing, silent or standing still too long, and tells
  // the ranks that the server lives. `crowded_out`: how many strangers were dropped so far to make room for
  // newer ones. `has_refused_token`: somebody was refused who came with another token.
  void Tick(std::int64_t crowded_out, bool has_refused_token);

  // The run has ended without those that have not come, as they are too late.
  bool too_late() const { return too_late_; }

 private:
  struct Standing {
    std::int64_t silent_ticks = 0;
    std::int64_t counter = -1;
    std::int64_t still_ticks = 0;  // since the counter moved
    std::string at;
    std::optional<Milliseconds> limit = {};  // of the ticks that it may stand still; nullopt: none
    bool waits = false;                      // for other ranks
  };

  Standing& StandingOf(std::int64_t rank) { return standings_[static_cast<std::size_t>(rank)]; }
  void EndForMissing(std::int64_t crowded_out, bool has_refused_token);
  Milliseconds StillOf(std::int64_t rank) const;
  bool AllStandStill(Milliseconds longer_than) const;
  void EndIfHanging();
  void EndHanging();
  std::string Table(std::vector<std::int64_t> ranks) const;

  const RendezvousOptions options_;
  const Milliseconds tick_;
  Members& members_;
  std::vector<Standing> standings_;  // by rank
  std::int64_t ticks_ = 0;
  bool too_late_ = false;
  bool told_of_waiting_ = false;  // for ranks that may stand still for longer, since somebody got on
};

}  // namespace engine::launch

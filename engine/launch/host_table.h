// The hosts of a run as the one that leads knows them: who is here, who has which place, and what follows an attempt.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/launch/socket.h"

namespace engine::launch {

// How an attempt to run ended on a host.
struct HostEnd {
  int code = 0;
  bool asked_to_stop = false;  // by a signal
  bool is_suspect = false;     // its own machine, or a device of it, is to blame
  std::string verdict;         // SupervisedEnd::verdict; empty: none failed
  std::int64_t newest = -1;    // iteration of which each of its ranks has a copy in memory
};

// How large an attempt is.
struct AttemptSize {
  std::int64_t nodes = 0;  // places
  std::int64_t dp = 0;     // data-parallel ranks of the layout
  bool operator==(const AttemptSize&) const = default;
};

// What follows an attempt.
struct Sequel {
  bool ends = false;                   // the run
  int code = 0;                        // of the run that ends
  std::string text;                    // why it ends; or "restart 1 of 3"
  std::chrono::milliseconds pause{0};  // before it begins again
  bool from_disk = false;              // then, whatever is in memory
};

// The places of a run are numbered from 0; a host has one of them, or is a spare. Times are given by the caller. One thread calls
// everything here.
class HostTable {
 public:
  struct Options {
    std::int64_t nodes = 1;  // places
    std::int64_t hosts = 1;  // numbers that hosts have, from 0; those from `nodes` on begin as spares
    // So many hosts have to be here for an attempt that follows another one. Fewer than `nodes`: the run goes on without the hosts that
    // are lost, and more than half of `hosts`, so that at most one of two groups that do not see each other does. Each attempt has more
    // than `hosts` − `min_nodes` places, so that a group too small to begin one holds not all places of one that runs either.
    std::int64_t min_nodes = 1;
    std::int64_t dp = 1;                     // of attempts with all places
    std::chrono::milliseconds last_call{0};  // for hosts that are lost, before the run goes on without them
    std::chrono::milliseconds patience{
        0};  // with hosts that are missing, and that the run cannot go on without
    std::chrono::milliseconds settling{0};  // within which hosts come to one that has begun to lead
    int lost_code = 0;                      // of a run that hosts are missing of
    // After so many attempts; `ends`: of the hosts that had a place and are still here.
    std::function<Sequel(std::int64_t attempts, const std::vector<HostEnd>& ends)> judge;
    // The largest attempt for so many hosts, fewer than `nodes`, with `least` places or more; nullopt: it is still looked for; without
    // places: there is none.
    std::function<std::optional<AttemptSize>(std::int64_t hosts, std::int64_t least)> fit;
    // An attempt begins, from the disk or from what is in memory.
    std::function<void(bool from_disk)> begins;
  };
  // What a host says of itself when it comes.
  struct Facts {
    std::string process;          // for messages
    std::string successor_at;     // where it listens in case it has to lead
    std::string ranks_at;         // where rank 0 would listen there
    std::int64_t generation = 0;  // of the attempt that it knows; 0: none
    std::int64_t node = -1;       // its place in that; −1: it is a spare
    AttemptSize size = {};        // of that
    std::string copies_at = {};   // where it keeps copies of states; empty: it keeps none
  };
  struct News {
    bool over = false;  // the run, with:
    int code = 0;
    std::string text;             // for a person
    std::int64_t generation = 0;  // else an attempt begins
    std::string ranks_at;         // where rank 0 listens
    bool from_disk = false;
    AttemptSize size = {};
    std::map<std::int64_t, std::int64_t> nodes;  // host → its place; others are spares
    std::string copies_at;  // Facts::copies_at of all hosts that are here, with commas between
  };

  explicit HostTable(Options options)
      : options_(std::move(options)), size_{.nodes = options_.nodes, .dp = options_.dp} {}

  // From the beginning, or from where the one that led before has left it; `expected`: hosts that are waited for until `by`.
  void Take(std::int64_t generation, std::set<std::int64_t> expected, Clock::time_point by,
            Clock::time_point now);
  // One that knows a later attempt than this table has places from there: it is the table that is new.
  void Come(std::int64_t host, const Facts& facts, Clock::time_point now);
  // Its connection is gone.
  void Go(std::int64_t host, Clock::time_point now);
  // Of an attempt that is not the last one it says nothing. `ranks_at` is for the next one.
  void End(std::int64_t host, std::int64_t generation, const HostEnd& end, const std::string& ranks_at);
  // The run is over, whatever the hosts are at.
  void Finish(int code, const std::string& text);

  // What all hosts have to hear now; some may know it.
  std::optional<News> Decide(Clock::time_point now);

  std::int64_t generation() const { return generation_; }
  // It has no place in the last attempt, whatever it knows of that.
  bool IsSpare(std::int64_t host) const;
  // Hosts that are here, with where they would lead.
  std::map<std::int64_t, std::string> Present() const;

 private:
  struct Host {
    Facts facts;
    bool is_here = false;
    Clock::time_point gone_since;
    std::optional<HostEnd> end;  // of the attempt of this generation
    int blame = 0;               // failures of its own
  };

  bool AttemptIsOver(Clock::time_point now) const;
  void JudgeAttempt(Clock::time_point now);
  std::int64_t LeastPlaces() const;  // of an attempt
  std::int64_t CountHere(bool with_blamed) const;
  // Of the next attempt; nullopt: it is not known yet; without places: hosts are missing for it.
  std::optional<AttemptSize> NextSize(Clock::time_point now) const;
  std::optional<News> Begin(const AttemptSize& size);
  // node → host; fewer than `nodes` where hosts are missing.
  std::map<std::int64_t, std::int64_t> Assign(std::int64_t nodes, bool by_blame) const;
  std::int64_t HostFor(std::int64_t node, std::int64_t nodes, const std::set<std::int64_t>& taken,
                       bool by_blame) const;

  const Options options_;
  AttemptSize size_;  // of the attempt, or of the last one
  std::int64_t generation_ = 0;
  bool runs_ = false;  // an attempt
  bool over_ = false;
  std::optional<News> finished_;
  std::map<std::int64_t, Host> hosts_;
  std::map<std::int64_t, std::int64_t> holders_;  // node → host
  std::set<std::int64_t> expected_;
  std::set<std::int64_t> late_;  // hosts that have yet to hear of the attempt
  News began_;                   // of the attempt
  Clock::time_point expected_by_, last_call_until_, missing_until_, not_before_;
  std::string text_;  // for the next attempt
  bool from_disk_ = false;
};

}  // namespace engine::launch

// The host that leads a run (roster.h), as the others reach it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "engine/launch/connections.h"
#include "engine/launch/host_table.h"
#include "engine/launch/roster.h"

namespace engine::launch {

// A thread of its own waits for messages and ticks.
class RosterLeader {
 public:
  // `generation`, `expected`, `by`: as HostTable::Take has them.
  RosterLeader(Descriptor listener, const Roster::Options& options, std::int64_t generation,
               std::set<std::int64_t> expected, Clock::time_point by);
  // Waits a little until all have heard that the run is over, if it is.
  ~RosterLeader();

 private:
  struct Seat {
    Connection* connection = nullptr;
    std::int64_t silent_ticks =
        0;  // in ticks, so that a host that was stopped as a whole blames nobody for it
  };

  void Loop();
  void Tick();
  void TakeIn(Connection& from, const WireMessage& message);
  void TakeHello(Connection& from, const WireMessage& message);
  void TakeInOfHost(Connection& from, const WireMessage& message);
  void Dropped(const Connection& connection);
  void Tell(const HostTable::News& news);
  void TellHosts();
  void SendToAll(MessageKind kind, const std::vector<std::string>& fields);
  void CallCoordinator();

  const Roster::Options options_;
  const Descriptor wake_;
  HostTable table_;
  std::map<std::int64_t, Seat> seats_;            // of hosts that are here
  std::map<std::int64_t, std::string> names_;     // of their processes
  std::optional<std::vector<std::string>> over_;  // fields of kRunOver
  bool has_new_hosts_ = false;                    // which all have to hear of
  bool has_begun_ = false;                        // an attempt, since this host leads
  bool has_refused_token_ = false;                // of somebody who came with another one
  Connections connections_;
  std::atomic<bool> yields_ = false;  // to the one that leads at the coordinator's address
  std::atomic<bool> stopping_ = false;
  std::thread thread_, caller_;
};

}  // namespace engine::launch

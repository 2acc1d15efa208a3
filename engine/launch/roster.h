// The hosts of a run meet, hear of each other's ends, and take each other's places: one process on each host, which starts the ranks
// there. One of them leads: host 0 at first, where all know it to be. When it is lost, the host with the lowest number of those
// that are left leads on.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "engine/launch/host_table.h"
#include "engine/launch/link.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/socket.h"

namespace engine::launch {

class RosterLeader;

class Roster {
 public:
  struct Options {
    std::int64_t host = 0;
    HostTable::Options table;  // its patience is also that of hosts with the one that leads
    Endpoint coordinator;
    std::string token;
    std::chrono::milliseconds heartbeat_timeout{0};  // a host so long unheard of is lost
    std::string process;                             // for messages: "host a, pid 77"
    int stopped_code = 0;                            // of a run that a signal stops between attempts
    int copies_port = 0;  // where this host keeps copies of states; 0: it keeps none
  };
  // What this host is to do next.
  struct Turn {
    bool over = false;  // the run, with:
    int code = 0;
    std::string text;             // for a person; may be empty
    std::int64_t generation = 0;  // else this attempt begins
    std::int64_t node = 0;        // this host's place in it
    AttemptSize size = {};        // of it
    Endpoint ranks_at;            // where rank 0 listens
    Descriptor listener;          // there, where this host has place 0
    bool from_disk = false;       // whatever is in memory
    std::string copies_at = {};   // where hosts keep copies of states, spares too: "HOST:PORT,HOST:PORT"
  };

  // `listener`: at the coordinator's address, on host 0.
  Roster(Options options, Descriptor listener);
  // Leaves the run, which goes on without this host unless it is over.
  ~Roster();
  Roster(const Roster&) = delete;
  Roster& operator=(const Roster&) = delete;

  // `end`: how the attempt of the last turn ended here. Waits until this host has a place in an attempt, or the run is over.
  // `stop_comes` is asked now and then: that ends the run where this host had a place; a spare leaves it alone. So is `is_over`: whether
  // the run has come to its end without this host, and nobody may be left who could tell it; the turn is over then, with code 0.
  Turn Next(const std::optional<HostEnd>& end, const std::function<bool()>& stop_comes,
            const std::function<bool()>& is_over);

  // How many hosts are here, this one with them, as the one that leads has told last; 0 before it has. One that it has told of no others
  // cannot find the next that leads.
  std::size_t hosts_here() const;

 private:
  void Live();
  absl::StatusOr<Link> Reach();
  absl::StatusOr<Link> MeetFirst();
  absl::StatusOr<Link> Lead();
  absl::StatusOr<Link> Call(absl::StatusOr<Descriptor> socket, std::chrono::milliseconds patience) const;
  absl::Status MakeListeners(const std::string& address);
  void Converse(Descriptor socket);
  // False: the conversation has ended.
  bool TakeIn(const WireMessage& message);
  void TellEnd(const HostEnd& end);
  void SayWhatIsNew(FrameStream& stream);
  void EndRun(int code, const std::string& text);

  const Options options_;
  std::unique_ptr<RosterLeader> leader_;  // of the thread; null: another host leads
  Endpoint leads_at_;
  Descriptor successor_listener_;  // where this host would
  std::string successor_at_;
  const Descriptor wake_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::int64_t, Endpoint> hosts_;  // that are here, with where they would lead; the thread writes it
  Descriptor ranks_listener_;               // of rank 0 of the next attempt, should it be here
  std::string ranks_at_;
  std::int64_t generation_ = 0, node_ = -1;  // of the attempt that this host knows last
  AttemptSize size_;                         // of it
  std::int64_t begun_ = 0;                   // the attempt of the last turn
  std::optional<HostEnd> end_;               // of the attempt that this host knows last
  bool says_end_ = false;                    // it is still to be told
  std::optional<Turn> turn_;
  bool leaving_ = false;
  std::thread thread_;
};

}  // namespace engine::launch

// The ranks of a run as the rendezvous' server knows them: who has come, whether the run has started, and why
// it has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/launch/connections.h"
#include "engine/launch/message.h"
#include "engine/launch/rendezvous.h"

namespace engine::launch {

// The place of one rank.
struct Seat {
  bool is_taken() const { return connection != nullptr || left; }

  Member facts;
  Connection* connection = nullptr;  // null: has not come
  bool left = false;                 // said goodbye
};

// The run starts when all ranks have a connection. It ends early at most once, with one reason that all ranks
// are told. One thread calls everything here.
class Members {
 public:
  // `self`: the member of this process. `ended`: why the run will not begin; empty where it will.
  Members(Member self, std::string ended);

  const Member& self() const { return self_; }
  std::int64_t world() const { return self_.world; }
  const Seat& seat(std::int64_t rank) const { return seats_[static_cast<std::size_t>(rank)]; }
  const std::vector<Seat>& seats() const { return seats_; }  // by rank
  bool has_started() const { return started_; }
  const std::string& reason() const { return reason_; }  // why the run has ended; empty while it goes on

  // To those that are here.
  void SendTo(std::int64_t rank, MessageKind kind, const std::vector<std::string>& fields);
  void SendToAll(MessageKind kind, const std::vector<std::string>& fields);

  // The member's seat must be free. The run starts when it was the last to come.
  void Join(const Member& member, Connection& connection);
  // The rank goes, and is not missed from now on.
  void Leave(std::int64_t rank) { SeatOf(rank).left = true; }
  // The end of the run, early; the first reason is the one that counts. `more` is for rank 0 alone, so that
  // a log has it once.
  void End(const std::string& reason, const std::string& more = "");
  // Ends the run as it has lost this rank, whose connection closes when it has been told so.
  void Lose(std::int64_t rank, const std::string& why);
  // The connection is gone: if it was that of a rank that has not left, the rank is lost.
  void Forget(const Connection& connection, const std::string& why);

  // The rank knows why the run ends, or is told so over a connection that is not its seat's.
  void MarkTold(std::int64_t rank) { told_.insert(rank); }
  bool all_are_told() const { return told_.size() == seats_.size(); }

 private:
  Seat& SeatOf(std::int64_t rank) { return seats_[static_cast<std::size_t>(rank)]; }
  void StartIfAllAreHere();

  const Member self_;
  std::vector<Seat> seats_;
  bool started_ = false;
  std::string reason_;
  std::set<std::int64_t> told_;  // ranks that have been sent the reason
};

}  // namespace engine::launch

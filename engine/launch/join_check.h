// The first message of a connection to the rendezvous' server, its hello, decides what becomes of the
// connection.
#pragma once

#include <string>

#include "engine/launch/connections.h"
#include "engine/launch/members.h"
#include "engine/launch/message.h"
#include "engine/launch/rendezvous.h"

namespace engine::launch {

// Who does not know the token is refused, and the ranks that are here go on. Who knows it joins the run, unless the run
// has ended, the newcomer does not fit (then a run that has not started ends), or it only reports a failure.
class JoinCheck {
 public:
  // `members` outlives this.
  JoinCheck(std::string token, Members& members);

  // The first message of this connection, which is a stranger's.
  void TakeHello(Connection& connection, const WireMessage& message);
  // Somebody spoke this program's language and was refused for another token.
  bool has_refused_token() const { return has_refused_token_; }

 private:
  void TakeMember(Connection& connection, const Member& member);
  void Expect(Connection& connection, const Member& member);
  std::string ObjectionTo(const Member& member) const;

  const std::string token_;
  Members& members_;
  bool has_refused_token_ = false;
};

}  // namespace engine::launch

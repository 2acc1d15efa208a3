// The connections of the rendezvous' server: the sockets, the frames on them, and who may stay.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/launch/message.h"
#include "engine/launch/socket.h"

namespace engine::launch {

// One connection. Until its first message has said who it is, it is a stranger's; after that it is a rank's,
// or that of one who has failed before it joined.
struct Connection {
  Connection(Descriptor socket, std::string its_nonce);
  bool is_stranger() const { return rank < 0 && failing.empty(); }
  void Queue(MessageKind kind, std::vector<std::string> fields);

  FrameStream stream;
  std::string nonce;      // ours
  bool readable = false;  // or closed
  Clock::time_point since = Clock::now();
  std::int64_t rank = -1;  // of a member
  std::string failing;     // name of one that has failed before it joined, and will say why
  bool closing = false;    // when all is sent
  bool gone = false;
};

// All connections of a server. One thread calls everything here, and both functions are called from within
// these calls: they may mark connections, queue messages and drop connections.
class Connections {
 public:
  using OnMessage = std::function<void(Connection& from, const WireMessage& message)>;
  // The connection is gone, by the peer's doing or by Drop, for this reason.
  using OnDropped = std::function<void(const Connection& connection, const std::string& why)>;

  // All ranks of the world may come at once, and are strangers when they come.
  Connections(Descriptor listener, std::size_t world, OnMessage on_message, OnDropped on_dropped);

  // Waits until `until`, or until something has come: on a connection, at the listener, or on the descriptor
  // `wake`, unless that is negative.
  void Poll(Clock::time_point until, int wake);
  // Takes in the messages of the connections that Poll found readable.
  void ServeReadable();
  // Accepts those that have come, and drops strangers that are late or too many.
  void Admit();
  void Drop(Connection& connection, const std::string& why);
  // Sends what the sockets take, and forgets the connections that are gone.
  void Flush();

  // Whether there is a connection whose end is waited for: a rank's, or one that closes when it has been sent
  // its answer.
  bool AnyIsAwaited() const;
  // So many strangers were dropped to make room for newer ones.
  std::int64_t crowded_out() const { return crowded_out_; }

 private:
  void Serve(Connection& connection);
  void AcceptNew();
  void DropStranger(Connection& connection, bool crowded);
  void FlushOne(Connection& connection);

  const Descriptor listener_;
  const std::size_t most_strangers_;
  const OnMessage on_message_;
  const OnDropped on_dropped_;
  std::deque<std::unique_ptr<Connection>> connections_;  // in the order in which they came
  std::int64_t crowded_out_ = 0;
};

}  // namespace engine::launch

#include "engine/launch/connections.h"

#include <absl/status/statusor.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/launch/handshake.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

constexpr auto kHelloTimeout = std::chrono::seconds(5);
constexpr std::size_t kMostHelloBytes = 4096;
// The most connections kept that have not said who they are; the world's size, if that is larger.
constexpr std::size_t kMostStrangers = 128;
constexpr std::size_t kMostAdmitted = 32;  // accepted before the others are read again

}  // namespace

Connection::Connection(Descriptor socket, std::string its_nonce)
    : stream(std::move(socket), kMostHelloBytes), nonce(std::move(its_nonce)) {}

void Connection::Queue(MessageKind kind, std::vector<std::string> fields) {
  stream.Queue(Encode({kind, std::move(fields)}));
}

Connections::Connections(Descriptor listener, std::size_t world, OnMessage on_message, OnDropped on_dropped)
    : listener_(std::move(listener)),
      most_strangers_(std::max(kMostStrangers, world)),
      on_message_(std::move(on_message)),
      on_dropped_(std::move(on_dropped)) {}

void Connections::Poll(Clock::time_point until, int wake) {
  std::vector<pollfd> waiting = {{listener_.number(), POLLIN, 0}, {wake, POLLIN, 0}};
  for (const auto& connection : connections_) {
    const short unsent = connection->stream.has_unsent() ? POLLOUT : 0;
    waiting.push_back({connection->stream.number(), static_cast<short>(POLLIN | unsent), 0});
  }
  const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now()).count();
  poll(waiting.data(), waiting.size(), static_cast<int>(std::max<std::int64_t>(0, left)));
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    connections_[i]->readable = (waiting[i + 2].revents & ~POLLOUT) != 0;
  }
}

void Connections::ServeReadable() {
  for (const auto& connection : connections_) {
    if (connection->readable) Serve(*connection);
  }
}

void Connections::Serve(Connection& connection) {
  if (connection.gone) return;
  const bool open = connection.stream.Fill();
  while (!connection.closing && !connection.gone) {
    const absl::StatusOr<std::optional<std::string>> frame = connection.stream.Next();
    if (frame.ok() && !*frame) break;
    const absl::StatusOr<WireMessage> message = frame.ok() ? Decode(**frame) : frame.status();
    if (!message.ok()) {
      Drop(connection, "sent something that is no message");
    } else {
      on_message_(connection, *message);
    }
  }
  if (!open) Drop(connection, "connection closed");
}

void Connections::Admit() {
  AcceptNew();
  std::size_t strangers = 0;  // the newest may stay
  for (std::size_t i = connections_.size(); i-- > 0;) {
    Connection& connection = *connections_[i];
    if (!connection.is_stranger() || connection.gone) continue;
    const bool late = Clock::now() - connection.since > kHelloTimeout;
    const bool crowded = ++strangers > most_strangers_;
    if (late || crowded) DropStranger(connection, crowded);
  }
}

void Connections::AcceptNew() {
  for (std::size_t admitted = 0; admitted < kMostAdmitted; ++admitted) {
    Descriptor socket = Accept(listener_);
    absl::StatusOr<std::string> nonce = RandomBytes(kNonceBytes);
    if (!socket.open() || !nonce.ok()) break;
    connections_.push_back(std::make_unique<Connection>(std::move(socket), *std::move(nonce)));
    connections_.back()->Queue(MessageKind::kChallenge, {kMagic, connections_.back()->nonce});
  }
}

void Connections::DropStranger(Connection& connection, bool crowded) {
  Serve(connection);  // it may have just said who it is
  if (!connection.is_stranger()) return;
  if (connection.closing) {  // it did, and has an answer
    FlushOne(connection);
  } else if (crowded && !connection.gone) {
    ++crowded_out_;
  }
  connection.gone = true;
}

void Connections::Drop(Connection& connection, const std::string& why) {
  connection.gone = true;
  on_dropped_(connection, why);
}

void Connections::Flush() {
  for (const auto& connection : connections_) FlushOne(*connection);
  std::erase_if(connections_, [](const auto& connection) { return connection->gone; });
}

void Connections::FlushOne(Connection& connection) {
  if (connection.gone) return;
  if (!connection.stream.Flush()) Drop(connection, "connection closed");
  // By Drop, so that its seat does not point to it any more.
  if (connection.closing && !connection.stream.has_unsent()) Drop(connection, "connection closed");
}

bool Connections::AnyIsAwaited() const {
  const auto waits = [](const auto& connection) { return connection->rank >= 0 || connection->closing; };
  return std::any_of(connections_.begin(), connections_.end(), waits);
}

}  // namespace engine::launch

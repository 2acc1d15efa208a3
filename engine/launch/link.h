// A connection on which a thread sends messages and bytes by the gigabyte, and waits for the answers.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/launch/message.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/socket.h"

namespace engine::launch {

class Link {
 public:
  using Patience = std::optional<std::chrono::milliseconds>;  // nullopt: without end

  explicit Link(Descriptor socket) : socket_(std::move(socket)) {}

  // Each fails (Unavailable) where the other end is gone, or takes or gives no byte for as long as that.
  absl::Status Send(const WireMessage& message, Patience patience) const;
  absl::StatusOr<WireMessage> Receive(Patience patience) const;
  // Bytes, and then their hash (base/hash.h); what was received of another hash is DataLoss.
  absl::Status SendBytes(std::span<const std::byte> bytes, Patience patience) const;
  absl::Status ReceiveBytes(std::span<std::byte> bytes, Patience patience) const;

  const Descriptor& socket() const { return socket_; }
  Descriptor TakeSocket() && { return std::move(socket_); }

 private:
  absl::Status SendAll(const std::byte* data, std::size_t bytes, Patience patience) const;
  absl::Status ReceiveAll(std::byte* data, std::size_t bytes, Patience patience) const;

  Descriptor socket_;
};

// The member's side of the handshake (handshake.h). Error: FailedPrecondition where the other end does not know the token; Unavailable
// where it does not answer.
absl::StatusOr<Link> OpenLink(Descriptor socket, const std::string& token, const Member& self,
                              std::chrono::milliseconds patience);
// The server's side.
absl::Status AdmitLink(const Link& link, const std::string& token, std::chrono::milliseconds patience);

}  // namespace engine::launch

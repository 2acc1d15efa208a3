#include "engine/launch/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/launch/handshake.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;  // hashed while they are in the processor's cache

// False: nothing has come within that.
bool WaitForSocket(const Descriptor& socket, short events, Link::Patience patience) {
  pollfd waiting{socket.number(), events, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, patience ? static_cast<int>(patience->count()) : -1);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

absl::Status Silent(Link::Patience patience) {
  return Unavailable("nothing came of the other end for {}", Text(*patience));
}

}  // namespace

absl::Status Link::SendAll(const std::byte* data, std::size_t bytes, Patience patience) const {
  while (bytes > 0) {
    const ssize_t put = send(socket_.number(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) {
      data += put;
      bytes -= static_cast<std::size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitForSocket(socket_, POLLOUT, patience)) return Silent(patience);
    } else if (errno != EINTR) {
      return Unavailable("connection closed: {}", std::strerror(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status Link::ReceiveAll(std::byte* data, std::size_t bytes, Patience patience) const {
  while (bytes > 0) {
    const ssize_t got = recv(socket_.number(), data, bytes, MSG_DONTWAIT);
    if (got > 0) {
      data += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      return Unavailable("connection closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitForSocket(socket_, POLLIN, patience)) return Silent(patience);
    } else if (errno != EINTR) {
      return Unavailable("connection closed: {}", std::strerror(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status Link::Send(const WireMessage& message, Patience patience) const {
  const std::string frame = Encode(message);
  const auto length = static_cast<std::uint32_t>(frame.size());
  std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
  text += frame;
  return SendAll(reinterpret_cast<const std::byte*>(text.data()), text.size(), patience);
}

absl::StatusOr<WireMessage> Link::Receive(Patience patience) const {
  std::uint32_t length = 0;
  RETURN_IF_ERROR(ReceiveAll(reinterpret_cast<std::byte*>(&length), sizeof(length), patience));
  if (length > kMostFrameBytes)
    return DataLoss("a frame of {} bytes; {} is the most", length, kMostFrameBytes);
  std::string frame(length, '\0');
  RETURN_IF_ERROR(ReceiveAll(reinterpret_cast<std::byte*>(frame.data()), length, patience));
  return Decode(frame);
}

absl::Status Link::SendBytes(std::span<const std::byte> bytes, Patience patience) const {
  Hasher hasher;
  for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    const std::span<const std::byte> block = bytes.subspan(at, std::min(kBlockBytes, bytes.size() - at));
    hasher.Update(block.data(), block.size());
    RETURN_IF_ERROR(SendAll(block.data(), block.size(), patience));
  }
  return Send({MessageKind::kDigest, {hasher.HexDigest()}}, patience);
}

absl::Status Link::ReceiveBytes(std::span<std::byte> bytes, Patience patience) const {
  Hasher hasher;
  for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    const std::span<std::byte> block = bytes.subspan(at, std::min(kBlockBytes, bytes.size() - at));
    RETURN_IF_ERROR(ReceiveAll(block.data(), block.size(), patience));
    hasher.Update(block.data(), block.size());
  }
  ASSIGN_OR_RETURN(const WireMessage digest, Receive(patience));
  if (digest.kind == MessageKind::kDigest && digest.fields[0] == hasher.HexDigest()) return absl::OkStatus();
  return DataLoss("what came is not what was sent: the hashes differ");
}

absl::StatusOr<Link> OpenLink(Descriptor socket, const std::string& token, const Member& self,
                              std::chrono::milliseconds patience) {
  Link link(std::move(socket));
  ASSIGN_OR_RETURN(const WireMessage challenge, link.Receive(patience));
  if (challenge.kind != MessageKind::kChallenge || challenge.fields[0] != kMagic)
    return FailedPrecondition("no process of this program, or of another version of it, listens there");
  ASSIGN_OR_RETURN(std::string nonce, RandomBytes(kNonceBytes));
  std::vector<std::string> hello = {kMagic,
                                    std::move(nonce),
                                    std::to_string(self.rank),
                                    std::to_string(self.world),
                                    self.build,
                                    self.plan_hash,
                                    self.device,
                                    self.process,
                                    ""};
  hello.back() = ProofOf(MessageKind::kHello, token, challenge.fields[1], hello);
  RETURN_IF_ERROR(link.Send({MessageKind::kHello, hello}, patience));
  ASSIGN_OR_RETURN(const WireMessage welcome, link.Receive(patience));
  if (welcome.kind != MessageKind::kWelcome ||
      !SameProof(welcome.fields[0], ProofOf(MessageKind::kWelcome, token, challenge.fields[1], hello)))
    return FailedPrecondition("the process that listens there does not know the token of this run: {}",
                              kTokenRule);
  return link;
}

absl::Status AdmitLink(const Link& link, const std::string& token, std::chrono::milliseconds patience) {
  ASSIGN_OR_RETURN(const std::string nonce, RandomBytes(kNonceBytes));
  RETURN_IF_ERROR(link.Send({MessageKind::kChallenge, {kMagic, nonce}}, patience));
  ASSIGN_OR_RETURN(const WireMessage hello, link.Receive(patience));
  if (hello.kind != MessageKind::kHello || hello.fields[0] != kMagic ||
      !SameProof(hello.fields.back(), ProofOf(MessageKind::kHello, token, nonce, hello.fields))) {
    link.Send({MessageKind::kRefused, {"token"}}, patience).IgnoreError();
    return FailedPrecondition("a stranger");
  }
  return link.Send({MessageKind::kWelcome, {ProofOf(MessageKind::kWelcome, token, nonce, hello.fields)}},
                   patience);
}

}  // namespace engine::launch

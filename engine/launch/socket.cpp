#include "engine/launch/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "engine/base/status.h"

namespace engine::launch {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    return Unavailable("the host '{}' is not known here: {}", endpoint.host,
                       error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  return Addresses(found, &freeaddrinfo);
}

Descriptor MakeSocket(const addrinfo& address) {
  return Descriptor(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void SendAtOnce(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  constexpr std::int64_t kMost = 60'000;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kMost));
}

// One attempt at one address; 0, or an errno.
int TryConnect(const Descriptor& socket, const addrinfo& address, Clock::time_point deadline) {
  if (connect(socket.number(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waiting{socket.number(), POLLOUT, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, MillisecondsUntil(deadline));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void Descriptor::Close() {
  if (number_ >= 0) close(number_);
  number_ = -1;
}

std::string Endpoint::ToString() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Endpoint endpoint;
  if (colon != std::string::npos) {
    endpoint.host = text.substr(0, colon);
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data() + colon + 1, end, endpoint.port);
    if (error != std::errc() || last != end) endpoint.port = 0;
  }
  const bool bracketed =
      endpoint.host.size() > 2 && endpoint.host.front() == '[' && endpoint.host.back() == ']';
  if (bracketed) endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  const bool one_host =
      !endpoint.host.empty() && (bracketed || endpoint.host.find_first_of(":[]") == std::string::npos);
  constexpr int kMostPort = 65535;
  if (!one_host || endpoint.port < 1 || endpoint.port > kMostPort) {
    return InvalidArgument("'{}' is not HOST:PORT, as in node0:29500 or [fd00::1]:29500", text);
  }
  return endpoint;
}

absl::StatusOr<Descriptor> Listen(const Endpoint& endpoint, Clock::time_point known_by) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  absl::StatusOr<Addresses> found = Resolve(endpoint, AI_PASSIVE);
  while (!found.ok() && Clock::now() + kPause < known_by) {
    std::this_thread::sleep_for(kPause);
    found = Resolve(endpoint, AI_PASSIVE);
  }
  ASSIGN_OR_RETURN(const Addresses addresses, std::move(found));
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = MakeSocket(*address);
    const int on = 1;  // a port whose last run has just ended
    setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(socket.number(), address->ai_addr, address->ai_addrlen) == 0 &&
        listen(socket.number(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
  }
  if (error == EADDRINUSE) {
    return Unavailable("port {} of {} is taken by another program; give another one", endpoint.port,
                       endpoint.host);
  }
  if (error == EADDRNOTAVAIL) {
    return Unavailable("{} is no address of this machine, and rank 0 runs here: give one that is",
                       endpoint.host);
  }
  return Unavailable("cannot listen on {}: {}", endpoint.ToString(), std::strerror(error));
}

absl::StatusOr<Descriptor> ReservePort(const std::string& host) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve({host, 0}, AI_PASSIVE));
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = MakeSocket(*address);
    if (bind(socket.number(), address->ai_addr, address->ai_addrlen) == 0) return socket;
  }
  return Unavailable("no port of {} is to be had: {}", host, std::strerror(errno));
}

namespace {

// Of this end, both in digits.
std::pair<std::string, std::string> HostAndPort(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host.data(), host.size(), port.data(),
                port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  }
  return {host.data(), port.data()};
}

}  // namespace

int PortOf(const Descriptor& socket) { return std::atoi(HostAndPort(socket).second.c_str()); }

std::string LocalAddress(const Descriptor& socket) { return HostAndPort(socket).first; }

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

Descriptor Accept(const Descriptor& listener) {
  Descriptor socket(accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.open()) SendAtOnce(socket.number());
  return socket;
}

absl::StatusOr<Descriptor> ConnectOnce(const Endpoint& endpoint, Clock::time_point deadline) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(endpoint, 0));
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Descriptor socket = MakeSocket(*address);
    error = TryConnect(socket, *address, deadline);
    if (error == 0) {
      SendAtOnce(socket.number());
      return socket;
    }
  }
  return Unavailable("{}", std::strerror(error));
}

absl::StatusOr<Descriptor> Connect(const Endpoint& endpoint, Clock::time_point deadline) {
  constexpr auto kPause = std::chrono::milliseconds(50);
  constexpr auto kOneAttempt = std::chrono::seconds(5);
  for (;;) {
    absl::StatusOr<Descriptor> socket = ConnectOnce(endpoint, std::min(deadline, Clock::now() + kOneAttempt));
    if (socket.ok()) return socket;
    if (Clock::now() + kPause >= deadline) {
      return Unavailable("no connection to {}: {}", endpoint.ToString(), Message(socket.status()));
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool FrameStream::Fill() {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = recv(number(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      incoming_.append(buffer.data(), static_cast<std::size_t>(got));
      // More than a frame is not taken in at once, so a peer cannot fill the memory.
      if (incoming_.size() - taken_ > most_bytes_ + kLengthBytes) return true;
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

absl::StatusOr<std::optional<std::string>> FrameStream::Next() {
  if (incoming_.size() - taken_ < kLengthBytes) return std::nullopt;
  std::uint32_t length = 0;
  std::memcpy(&length, incoming_.data() + taken_, kLengthBytes);
  if (length > most_bytes_) return DataLoss("a frame of {} bytes; {} is the most", length, most_bytes_);
  if (incoming_.size() - taken_ < kLengthBytes + length) return std::nullopt;
  std::string frame = incoming_.substr(taken_ + kLengthBytes, length);
  taken_ += kLengthBytes + length;
  if (taken_ == incoming_.size()) {
    incoming_.clear();
    taken_ = 0;
  } else if (taken_ > kMostFrameBytes) {
    incoming_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

void FrameStream::Queue(std::string_view frame) {
  ENGINE_CHECK(frame.size() <= kMostFrameBytes, "a frame of {} bytes", frame.size());
  const auto length = static_cast<std::uint32_t>(frame.size());
  outgoing_.append(reinterpret_cast<const char*>(&length), kLengthBytes);
  outgoing_.append(frame);
}

bool FrameStream::Flush() {
  while (has_unsent()) {
    const ssize_t put = send(number(), outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    sent_ += static_cast<std::size_t>(put);
  }
  outgoing_.clear();
  sent_ = 0;
  return true;
}

void WaitFor(const FrameStream& stream, Clock::time_point deadline) {
  pollfd waiting{stream.number(), POLLIN, 0};
  if (stream.has_unsent()) waiting.events |= POLLOUT;
  poll(&waiting, 1, MillisecondsUntil(deadline));
}

}  // namespace engine::launch

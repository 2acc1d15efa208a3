// TCP between the processes of a run: sockets that close themselves, and frames on them. A frame is its
// length (u32, little-endian) and so many bytes.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace engine::launch {

using Clock = std::chrono::steady_clock;

inline constexpr std::size_t kMostFrameBytes = std::size_t{1} << 20;

// A file descriptor, closed at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Close(); }

  int number() const { return number_; }
  bool open() const { return number_ >= 0; }
  void Close();

 private:
  int number_ = -1;
};

struct Endpoint {
  std::string host;
  int port = 0;
  std::string ToString() const;  // "host:29500", "[::1]:29500"
};
// HOST:PORT, with brackets around an IPv6 address.
absl::StatusOr<Endpoint> ParseEndpoint(const std::string& text);

// Listens on that host's address alone, which must be one of this machine. Port 0: any that is free. The
// descriptor does not block. A host that is not known is asked for again until `known_by`.
absl::StatusOr<Descriptor> Listen(const Endpoint& endpoint,
                                  Clock::time_point known_by = Clock::time_point::min());
// A port of that host's address, which must be one of this machine, that no other program gets, and where nobody is heard before
// listen(2).
absl::StatusOr<Descriptor> ReservePort(const std::string& host);
int PortOf(const Descriptor& socket);
// Numeric address of this end of a connection.
std::string LocalAddress(const Descriptor& socket);
// Whether an address, in digits, is one that no other host can come to.
bool IsLoopback(const std::string& address);
// The next connection; not open where there is none yet.
Descriptor Accept(const Descriptor& listener);
// One attempt at each of the endpoint's addresses. The descriptor does not block.
absl::StatusOr<Descriptor> ConnectOnce(const Endpoint& endpoint, Clock::time_point deadline);
// Tries again until the deadline. The descriptor does not block.
absl::StatusOr<Descriptor> Connect(const Endpoint& endpoint, Clock::time_point deadline);

// Frames over a socket that does not block, for a loop around poll().
class FrameStream {
 public:
  explicit FrameStream(Descriptor socket, std::size_t most_bytes = kMostFrameBytes)
      : socket_(std::move(socket)), most_bytes_(most_bytes) {}

  int number() const { return socket_.number(); }
  void SetMost(std::size_t bytes) { most_bytes_ = bytes; }
  // Takes in what has come. False: the peer has closed, or the connection is broken; frames that came before
  // can still be taken.
  bool Fill();
  // The next whole frame; nullopt: not here yet. Error: one longer than the most.
  absl::StatusOr<std::optional<std::string>> Next();
  // Appends a frame, of at most kMostFrameBytes; Flush sends what the socket takes. False: it is broken.
  void Queue(std::string_view frame);
  bool Flush();
  bool has_unsent() const { return sent_ < outgoing_.size(); }

 private:
  Descriptor socket_;
  std::size_t most_bytes_;
  std::string incoming_, outgoing_;
  std::size_t taken_ = 0, sent_ = 0;  // bytes of the two that are done with
};

// Waits until the stream can be read (or written, where it has unsent bytes) or the deadline has passed.
void WaitFor(const FrameStream& stream, Clock::time_point deadline);

}  // namespace engine::launch

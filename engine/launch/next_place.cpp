#include "engine/launch/next_place.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/base/status.h"

namespace engine::launch {
namespace {

constexpr std::size_t kMostDescriptors = 8;

// Frame: u32 bytes of what follows, u32 arguments, then arguments and variables, each ended by a zero byte. The first byte carries
// the descriptors: standard output, then those of `shared`, whose variables are the first ones.
std::string FrameOf(const NextPlace& place) {
  std::string body;
  for (const std::string& text : place.arguments) body.append(text).push_back('\0');
  for (const std::string& text : place.variables) body.append(text).push_back('\0');
  const std::array<std::uint32_t, 2> header = {static_cast<std::uint32_t>(body.size()),
                                               static_cast<std::uint32_t>(place.arguments.size())};
  std::string frame(sizeof(header), '\0');
  std::memcpy(frame.data(), header.data(), sizeof(header));
  return frame + body;
}

// False: the other end is closed.
bool ReadAll(int socket, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = read(socket, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

struct Received {
  std::vector<Descriptor> descriptors;
  char first = 0;
};

// The first byte of a frame with its descriptors; nullopt: the other end is closed.
std::optional<Received> ReceiveFirst(int socket) {
  Received received;
  iovec bytes{&received.first, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, 0);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(number);
    }
  }
  return received;
}

std::vector<std::string> TextsOf(const std::string& body) {
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t end = body.find('\0', begin);
    texts.push_back(body.substr(begin, end - begin));
    begin = end + 1;
  }
  return texts;
}

// The descriptor of this variable that the process has had in its place before; −1: none.
int NumberIn(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? -1 : std::atoi(value);
}

}  // namespace

absl::StatusOr<PlaceGiver> PlaceGiver::Make(Descriptor* theirs) {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Unavailable("cannot make a pair of sockets: {}", std::strerror(errno));
  PlaceGiver giver;
  giver.socket_ = Descriptor(ends[0]);
  *theirs = Descriptor(ends[1]);
  return giver;
}

bool PlaceGiver::HasAsked() {
  char byte = 0;
  return open() && recv(socket_.number(), &byte, 1, MSG_DONTWAIT) == 1;
}

bool PlaceGiver::Give(NextPlace place, int out, const std::vector<std::pair<std::string, int>>& shared) {
  std::vector<int> numbers = {out};
  std::vector<std::string> first;
  for (const std::pair<std::string, int>& of : shared) {
    first.push_back(fmt::format("{}={}", of.first, of.second));
    numbers.push_back(of.second);
    std::erase_if(place.variables, [&](const std::string& text) { return text.starts_with(of.first + "="); });
  }
  place.variables.insert(place.variables.begin(), first.begin(), first.end());
  const std::string frame = FrameOf(place);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  iovec bytes{const_cast<char*>(frame.data()), frame.size()};  // NOLINT: it is only read
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(numbers.size() * sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(numbers.size() * sizeof(int));
  std::memcpy(CMSG_DATA(part), numbers.data(), numbers.size() * sizeof(int));
  ssize_t sent = sendmsg(socket_.number(), &message, MSG_NOSIGNAL);
  // The rest has no descriptors with it. The process reads all of it before anything else.
  for (std::size_t done = 0; sent > 0 && done + static_cast<std::size_t>(sent) < frame.size();) {
    done += static_cast<std::size_t>(sent);
    sent = send(socket_.number(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
  }
  return sent > 0;
}

std::optional<std::vector<std::string>> AwaitNextPlace(int socket) {
  // Whoever waits keeps no state: its supervisor may have no place for it.
  if (const int memory = NumberIn("ENGINE_MEMORY"); memory >= 0) close(memory);
  unsetenv("ENGINE_MEMORY");
  constexpr char kAsks = 1;
  if (send(socket, &kAsks, 1, MSG_NOSIGNAL) != 1) return std::nullopt;
  std::optional<Received> received = ReceiveFirst(socket);
  if (!received || received->descriptors.empty()) return std::nullopt;
  std::array<std::uint32_t, 2> header{};  // bytes, arguments
  auto* const of_header = reinterpret_cast<char*>(header.data());
  of_header[0] = received->first;
  if (!ReadAll(socket, of_header + 1, sizeof(header) - 1)) return std::nullopt;
  std::string body(header[0], '\0');
  if (!ReadAll(socket, body.data(), body.size())) return std::nullopt;
  std::vector<std::string> arguments = TextsOf(body);
  const std::vector<std::string> variables(
      arguments.begin() + std::min<std::ptrdiff_t>(header[1], std::ssize(arguments)), arguments.end());
  arguments.resize(header[1]);

  for (const char* name : kPlaceVariables) {
    if (std::string_view(name) != "ENGINE_NEXT_PLACE") unsetenv(name);
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const std::size_t equals = variables[i].find('=');
    std::string value = variables[i].substr(equals + 1);
    if (i + 1 < received->descriptors.size()) {
      value = std::to_string(dup(received->descriptors[i + 1].number()));  // ours from now on
    }
    setenv(variables[i].substr(0, equals).c_str(), value.c_str(), /*overwrite=*/1);
  }
  std::fflush(stdout);
  dup2(received->descriptors[0].number(), STDOUT_FILENO);
  return arguments;
}

}  // namespace engine::launch

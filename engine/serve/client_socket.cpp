#include "engine/serve/client_socket.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <string_view>

namespace engine::serve {
namespace {

// The other end of the socket is that address and port.
bool IsPeer(int socket, const std::string& address, int port) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof peer;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return false;
  char host[NI_MAXHOST] = {};
  char service[NI_MAXSERV] = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&peer), length, host, sizeof host, service,
                  sizeof service, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return false;
  return address == host && std::to_string(port) == service;
}

}  // namespace

int SocketOf(const std::string& address, int port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (descriptor >= 0 && IsPeer(descriptor, address, port)) return descriptor;
  }
  return -1;
}

bool HasLeft(int socket) {
  if (socket < 0) return false;
  char byte = 0;
  const ssize_t got = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void EndRefused(int socket) {
  if (socket < 0) return;
  shutdown(socket, SHUT_WR);
  constexpr std::chrono::milliseconds kMost{500};
  const auto end = std::chrono::steady_clock::now() + kMost;
  char bytes[1 << 14];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd one = {.fd = socket, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&one, 1, static_cast<int>(left.count())) <= 0) break;
    if (recv(socket, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) break;
  }
  shutdown(socket, SHUT_RD);
}

}  // namespace engine::serve

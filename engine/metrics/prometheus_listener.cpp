#include "engine/metrics/prometheus_listener.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>

#include "engine/metrics/http.h"

namespace engine::metrics {
namespace {

using std::chrono::steady_clock;

// How long one client may take; others wait meanwhile.
constexpr auto kPatience = std::chrono::seconds(1);
constexpr std::size_t kMostRequestBytes = 16384;

// Whether the descriptor becomes ready before the deadline.
bool WaitUntil(int descriptor, short events, steady_clock::time_point deadline) {
  pollfd waiting{descriptor, events, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return false;
    const int ready = poll(&waiting, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// The head of a request, as much of it as comes in time.
std::string Receive(int connection, steady_clock::time_point deadline) {
  std::string request;
  char buffer[4096];
  while (request.find("\r\n\r\n") == std::string::npos && request.size() < kMostRequestBytes &&
         WaitUntil(connection, POLLIN, deadline)) {
    const ssize_t got = recv(connection, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    request.append(buffer, static_cast<std::size_t>(got));
  }
  return request;
}

void Send(int connection, std::string_view text, steady_clock::time_point deadline) {
  while (!text.empty() && WaitUntil(connection, POLLOUT, deadline)) {
    const ssize_t sent = send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0) return;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

}  // namespace

void PrometheusListener::Take(const Record& record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  metrics_.Take(record);
}

absl::Status PrometheusListener::Write(const Record& /*record*/) {
  return socket_.open() ? absl::OkStatus() : Listen();
}

absl::Status PrometheusListener::Close(bool /*succeeded*/) {
  Stop();
  return absl::OkStatus();
}

absl::Status PrometheusListener::Listen() {
  absl::StatusOr<launch::Descriptor> socket = launch::Listen(endpoint_);
  if (!socket.ok()) return WithContext(socket.status(), "logging.prometheus");
  launch::Descriptor stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.open()) return Unavailable("logging.prometheus: {}", std::strerror(errno));
  socket_ = *std::move(socket);
  stop_ = std::move(stop);
  // Signals are for the run's own thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Serve(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return absl::OkStatus();
}

void PrometheusListener::Serve() {
  while (true) {
    pollfd waiting[] = {{socket_.number(), POLLIN, 0}, {stop_.number(), POLLIN, 0}};
    if (poll(waiting, 2, -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents != 0) return;
    if (waiting[0].revents == 0) continue;
    const launch::Descriptor connection = launch::Accept(socket_);
    if (!connection.open()) {  // it has gone, or no descriptor is free: not at once again
      poll(&waiting[1], 1, 100);
      continue;
    }
    const auto deadline = steady_clock::now() + kPatience;
    const std::string request = Receive(connection.number(), deadline);
    std::string text;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      text = metrics_.Text();
    }
    Send(connection.number(), HttpAnswer(request, text), deadline);
  }
}

void PrometheusListener::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.number(), 1);
  thread_.join();
  socket_.Close();
}

}  // namespace engine::metrics

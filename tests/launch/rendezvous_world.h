// A server and the clients of a run, in one process.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/socket.h"

namespace engine::launch {

using Joined = absl::StatusOr<std::unique_ptr<Client>>;

inline Member MemberOf(std::int64_t rank, std::int64_t world) {
  return {.rank = rank,
          .world = world,
          .build = "b1",
          .plan_hash = "p1",
          .device = fmt::format("device {}", rank),
          .process = fmt::format("host, pid {}", 100 + rank)};
}

inline constexpr auto kFast = Milliseconds(400);

// The server, and clients that join at once from threads of their own.
struct World {
  explicit World(std::int64_t world, RendezvousOptions chosen = {}) : ranks(world), options(chosen) {
    absl::StatusOr<Descriptor> listener = Listen(endpoint);
    REQUIRE(listener.ok());
    endpoint.port = PortOf(*listener);
    server = Server::Start(*std::move(listener), "token", MemberOf(0, world), options);
  }
  ~World() {
    std::vector<std::thread> threads;  // goodbyes, at once as in processes of their own
    for (Joined& client : clients) threads.emplace_back([&client] { client = absl::UnknownError(""); });
    for (std::thread& thread : threads) thread.join();
  }

  void Join(std::vector<Member> members, const std::string& token = "token") {
    const std::size_t first = clients.size();
    for (std::size_t i = 0; i < members.size(); ++i) clients.emplace_back(absl::UnknownError(""));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] {
        clients[first + i] =
            Client::Join(endpoint, token, members[i], options, [this](const absl::Status&) { ++aborts; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void JoinAll() {
    std::vector<Member> members;
    for (std::int64_t rank = 0; rank < ranks; ++rank) members.push_back(MemberOf(rank, ranks));
    Join(members);
    for (const Joined& client : clients) REQUIRE_MESSAGE(client.ok(), Message(client.status()));
  }
  // body(client, rank) of each rank on a thread of its own.
  template <typename Body>
  void OnAll(const Body& body) {
    std::vector<std::thread> threads;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { body(*clients[rank].value(), rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // Waits until each rank knows the end, at most 5 s.
  void AwaitEndOfAll() {
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
    for (const Joined& joined : clients) {
      const Client& client = *joined.value();
      while (client.status().ok() && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(5));
      CHECK(absl::IsAborted(client.status()));
    }
  }
  // So many clients are told, a moment after they know.
  void CheckAborts(int count) const {
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
    while (aborts < count && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(5));
    CHECK(aborts == count);
  }
  // The same, and the reason, which is the same for all.
  std::string EndOfAll() {
    AwaitEndOfAll();
    for (const Joined& client : clients) CHECK((*client)->status() == clients[0].value()->status());
    return Message(clients[0].value()->status());
  }
  std::string ErrorOf(std::size_t client) const { return Message(clients[client].status()); }
  // "rank 1 at 127.0.0.1:4711: "
  std::string At(std::int64_t rank) const {
    return fmt::format("rank {} at {}: ", rank, endpoint.ToString());
  }

  std::int64_t ranks;
  RendezvousOptions options;
  Endpoint endpoint{"127.0.0.1", 0};
  std::atomic<int> aborts = 0;
  std::unique_ptr<Server> server;
  std::vector<Joined> clients;
};

}  // namespace engine::launch

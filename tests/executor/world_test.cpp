// Meetings and mailboxes: order, sizes, and that nobody waits for ever once the world is aborted.
#include "engine/backend/cpu/world.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace engine::backend::cpu {
namespace {

using std::chrono::milliseconds;

std::byte B(int value) { return static_cast<std::byte>(value); }

}  // namespace

TEST_CASE("a meeting lets nobody through before the last has come, again and again") {
  constexpr int kMembers = 4;
  constexpr int kRounds = 200;
  Meeting meeting(kMembers);
  std::atomic<int> arrived{0};
  std::atomic<int> early{0};
  std::vector<std::thread> threads;
  for (int member = 0; member < kMembers; ++member) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        ++arrived;
        if (!meeting.Wait().ok()) ++early;
        if (arrived < kMembers * (round + 1)) ++early;
        if (!meeting.Wait().ok()) ++early;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(early == 0);
  CHECK(arrived == kMembers * kRounds);
}

TEST_CASE("abort wakes those who wait at a meeting, and those who come later") {
  World world;
  Meeting* meeting = world.MeetingOf({0, 1});
  CHECK(meeting == world.MeetingOf({0, 1}));
  CHECK(meeting != world.MeetingOf({0, 2}));
  absl::Status status;
  std::thread waiting([&] { status = meeting->Wait(); });
  std::this_thread::sleep_for(milliseconds(10));
  world.Abort();
  waiting.join();
  CHECK(absl::IsAborted(status));
  CHECK(absl::IsAborted(meeting->Wait()));
  CHECK(absl::IsAborted(world.MeetingOf({5, 6})->Wait()));  // made after the abort
}

TEST_CASE("a mailbox keeps the order, and a sender may wait for each of its offers") {
  constexpr int kOffers = 500;
  World world;
  CpuCommunicator sender(&world, 0);
  CpuCommunicator receiver(&world, 1);
  std::vector<std::byte> sent(kOffers);
  std::atomic<int> wrong{0};
  std::thread sending([&] {
    std::int64_t before = 0;
    for (int i = 0; i < kOffers; ++i) {
      sent[static_cast<size_t>(i)] = B(i);
      const auto ticket = sender.Send(1, 3, &sent[static_cast<size_t>(i)], 1, 0, 0);
      if (!ticket.ok() || *ticket <= before) ++wrong;
      before = *ticket;
      // The bytes may change as soon as they are taken.
      if (i % 3 != 0) continue;
      if (!sender.WaitSent(1, 3, *ticket).ok()) ++wrong;
      sent[static_cast<size_t>(i)] = B(255);
    }
  });
  for (int i = 0; i < kOffers; ++i) {
    std::byte got{};
    REQUIRE(receiver.Receive(0, 3, &got, 1, 0).ok());
    REQUIRE(got == B(i));
  }
  sending.join();
  CHECK(wrong == 0);
}

TEST_CASE("channels and directions do not mix, and sizes must agree") {
  World world;
  CpuCommunicator zero(&world, 0);
  CpuCommunicator one(&world, 1);
  const std::array<std::byte, 3> bytes = {B(1), B(2), B(3)};
  REQUIRE(zero.Send(1, 0, &bytes[0], 1, 0, 0).ok());
  REQUIRE(zero.Send(1, 1, &bytes[1], 1, 0, 0).ok());
  REQUIRE(one.Send(0, 0, &bytes[2], 1, 0, 0).ok());
  std::byte got{};
  REQUIRE(one.Receive(0, 1, &got, 1, 0).ok());
  CHECK(got == B(2));
  REQUIRE(one.Receive(0, 0, &got, 1, 0).ok());
  CHECK(got == B(1));
  REQUIRE(zero.Receive(1, 0, &got, 1, 0).ok());
  CHECK(got == B(3));
  REQUIRE(zero.Send(1, 0, bytes.data(), 3, 0, 0).ok());
  std::array<std::byte, 2> small{};
  CHECK(Message(one.Receive(0, 0, small.data(), 2, 0)) == "3 bytes were sent where 2 are expected");
}

TEST_CASE("abort wakes senders and receivers") {
  World world;
  CpuCommunicator zero(&world, 0);
  CpuCommunicator one(&world, 1);
  const std::byte byte{};
  const auto ticket = zero.Send(1, 0, &byte, 1, 0, 0);
  REQUIRE(ticket.ok());
  absl::Status of_sender;
  absl::Status of_receiver;
  std::thread sender([&] { of_sender = zero.WaitSent(1, 0, *ticket); });
  std::thread receiver([&] {
    std::byte got{};
    of_receiver = one.Receive(0, 7, &got, 1, 0);
  });
  std::this_thread::sleep_for(milliseconds(10));
  world.Abort();
  sender.join();
  receiver.join();
  CHECK(absl::IsAborted(of_sender));
  CHECK(absl::IsAborted(of_receiver));
  // The offer that nobody took is void: its sender no longer keeps the bytes.
  std::byte got{};
  CHECK(absl::IsAborted(one.Receive(0, 0, &got, 1, 0)));
}

}  // namespace engine::backend::cpu

#include "engine/launch/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace engine::launch {
namespace {

const std::string kMoreAtRank0 = "; rank 0 says what each is at";

}  // namespace

Members::Members(Member self, std::string ended)
    : self_(std::move(self)),
      seats_(static_cast<std::size_t>(self_.world)),
      reason_(std::move(ended)),
      told_({self_.rank}) {}

void Members::SendTo(std::int64_t rank, MessageKind kind, const std::vector<std::string>& fields) {
  if (Connection* connection = SeatOf(rank).connection) connection->Queue(kind, fields);
}

void Members::SendToAll(MessageKind kind, const std::vector<std::string>& fields) {
  for (std::int64_t rank = 0; rank < self_.world; ++rank) SendTo(rank, kind, fields);
}

void Members::Join(const Member& member, Connection& connection) {
  Seat& seat = SeatOf(member.rank);
  seat.facts = member;
  seat.connection = &connection;
  connection.rank = member.rank;
  connection.stream.SetMost(kMostFrameBytes);
  StartIfAllAreHere();
}

void Members::StartIfAllAreHere() {
  const auto missing = [](const Seat& seat) { return seat.connection == nullptr; };
  if (std::any_of(seats_.begin(), seats_.end(), missing)) return;
  started_ = true;
  SendToAll(MessageKind::kStart, {self_.process});
}

void Members::End(const std::string& reason, const std::string& more) {
  if (!reason_.empty()) return;
  reason_ = reason;
  for (std::int64_t rank = 0; rank < self_.world; ++rank) {
    const std::string& rest = rank == 0 || more.empty() ? more : kMoreAtRank0;
    SendTo(rank, MessageKind::kAbort, {reason_ + rest});
  }
  for (std::int64_t rank = 0; rank < self_.world; ++rank) {
    if (SeatOf(rank).connection != nullptr) told_.insert(rank);
  }
}

void Members::Lose(std::int64_t rank, const std::string& why) {
  Seat& seat = SeatOf(rank);
  End(fmt::format("{} was lost: {}", seat.facts.Name(), why));
  if (seat.connection != nullptr) seat.connection->closing = true;
}

void Members::Forget(const Connection& connection, const std::string& why) {
  if (connection.rank < 0) return;
  Seat& seat = SeatOf(connection.rank);
  seat.connection = nullptr;
  if (!seat.left) Lose(connection.rank, why);
}

}  // namespace engine::launch

#include "engine/launch/join_check.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/launch/handshake.h"
#include "engine/launch/rendezvous_times.h"

namespace engine::launch {
namespace {

// Its answer is the last that this connection is sent.
void Part(Connection& connection, MessageKind kind, const std::string& reason) {
  connection.Queue(kind, {reason});
  connection.closing = true;
}

}  // namespace

JoinCheck::JoinCheck(std::string token, Members& members) : token_(std::move(token)), members_(members) {}

void JoinCheck::TakeHello(Connection& connection, const WireMessage& message) {
  const std::vector<std::string>& fields = message.fields;
  if (message.kind != MessageKind::kHello || fields[0] != kMagic) {
    connection.gone = true;
    return;
  }
  if (!SameProof(fields.back(), ProofOf(MessageKind::kHello, token_, connection.nonce, fields))) {
    has_refused_token_ = true;
    return Part(connection, MessageKind::kRefused, "token");
  }
  connection.Queue(MessageKind::kWelcome, {ProofOf(MessageKind::kWelcome, token_, connection.nonce, fields)});
  TakeMember(connection, {.rank = NumberOf(fields[2]),
                          .world = NumberOf(fields[3]),
                          .build = fields[4],
                          .plan_hash = fields[5],
                          .device = fields[6],
                          .process = fields[7]});
}

// One that knows the token.
void JoinCheck::TakeMember(Connection& connection, const Member& member) {
  if (!members_.reason().empty()) {
    members_.MarkTold(member.rank);
    return Part(connection, MessageKind::kAbort, members_.reason());
  }
  if (member.plan_hash.empty()) return Expect(connection, member);
  const std::string objection = ObjectionTo(member);
  if (objection.empty()) return members_.Join(member, connection);
  Part(connection, MessageKind::kRefused, objection);
  if (members_.has_started()) return;  // a latecomer
  members_.MarkTold(member.rank);
  members_.End(objection);
}

// One that failed before it could join; of a rank that has joined it is known already, or will be.
void JoinCheck::Expect(Connection& connection, const Member& member) {
  const bool is_rank = member.rank >= 0 && member.rank < members_.world();
  if (members_.has_started() || (is_rank && members_.seat(member.rank).is_taken())) {
    connection.closing = true;
    return;
  }
  if (is_rank) members_.MarkTold(member.rank);
  connection.failing = member.Name();
  connection.stream.SetMost(kMostFrameBytes);
}

// Why this member cannot be of this run; empty where it can.
std::string JoinCheck::ObjectionTo(const Member& member) const {
  const Member& self = members_.self();
  const std::string who = member.Name();
  if (member.world != self.world) {
    return fmt::format("{} is of a run of {} ranks, but this one has {}", who, member.world, self.world);
  }
  if (member.rank < 0 || member.rank >= self.world) {
    return fmt::format("{} is not below the {} ranks of this run", who, self.world);
  }
  const Seat& seat = members_.seat(member.rank);
  if (seat.is_taken()) {
    return fmt::format("{} came, but that rank is here already ({})", who, seat.facts.process);
  }
  if (member.build != self.build) {
    return fmt::format("{} runs another build of the program: {} against {} of rank 0", who, member.build,
                       self.build);
  }
  if (member.plan_hash != self.plan_hash) {
    return fmt::format("{} runs another recipe: plan hash {} against {} of rank 0", who, member.plan_hash,
                       self.plan_hash);
  }
  for (const Seat& other : members_.seats()) {
    if (other.connection != nullptr && other.facts.device == member.device) {
      return fmt::format("{} and {} are on one device: {}", who, other.facts.Name(), member.device);
    }
  }
  return "";
}

}  // namespace engine::launch

#include "tests/launch/by_hand.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "engine/base/status.h"
#include "engine/launch/handshake.h"

namespace engine::launch {

namespace {

const std::string kNonceOfTests(kNonceBytes, 'n');

}  // namespace

WireMessage Receive(FrameStream& stream) {
  for (const Clock::time_point deadline = Clock::now() + std::chrono::seconds(10); Clock::now() < deadline;) {
    const bool open = stream.Fill();
    const absl::StatusOr<std::optional<std::string>> frame = stream.Next();
    REQUIRE(frame.ok());
    if (*frame) {
      const absl::StatusOr<WireMessage> message = Decode(**frame);
      REQUIRE(message.ok());
      return *message;
    }
    REQUIRE_MESSAGE(open, "the connection was closed");
    WaitFor(stream, deadline);
  }
  FAIL("no message");
  return {};
}

void Transmit(FrameStream& stream, MessageKind kind, const std::vector<std::string>& fields) {
  stream.Queue(Encode({kind, fields}));
  stream.Flush();
}

std::vector<std::string> HelloTo(const WireMessage& challenge, const std::string& token,
                                 const std::vector<std::string>& member) {
  CHECK(challenge.kind == MessageKind::kChallenge);
  REQUIRE(challenge.fields.size() == 2);
  CHECK(challenge.fields[0] == kProtocol);
  std::vector<std::string> hello = {kProtocol, kNonceOfTests};
  hello.insert(hello.end(), member.begin(), member.end());
  hello.emplace_back();
  hello.back() = ProofOf(MessageKind::kHello, token, challenge.fields[1], hello);
  return hello;
}

FrameStream ComeAs(const Endpoint& server, const std::string& token, const std::vector<std::string>& member) {
  absl::StatusOr<Descriptor> socket = Connect(server, Clock::now() + std::chrono::seconds(10));
  REQUIRE(socket.ok());
  FrameStream stream(*std::move(socket));
  Transmit(stream, MessageKind::kHello, HelloTo(Receive(stream), token, member));
  return stream;
}

FrameStream AcceptNext(const Descriptor& listener) {
  Descriptor socket;
  for (int i = 0; i < 2000 && !socket.open(); ++i) {
    socket = Accept(listener);
    if (!socket.open()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  REQUIRE(socket.open());
  return FrameStream(std::move(socket));
}

std::vector<std::string> Challenge(FrameStream& stream) {
  Transmit(stream, MessageKind::kChallenge, {kProtocol, kNonceOfTests});
  const WireMessage hello = Receive(stream);
  CHECK(hello.kind == MessageKind::kHello);
  return hello.fields;
}

void Welcome(FrameStream& stream, const std::string& token, const std::vector<std::string>& hello) {
  Transmit(stream, MessageKind::kWelcome, {ProofOf(MessageKind::kWelcome, token, kNonceOfTests, hello)});
}

}  // namespace engine::launch

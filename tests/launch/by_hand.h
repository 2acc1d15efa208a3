// The two ends of the rendezvous, spoken by hand.
#pragma once

#include <string>
#include <vector>

#include "engine/launch/message.h"
#include "engine/launch/socket.h"

namespace engine::launch {

inline constexpr const char* kProtocol = "engine rendezvous 4";

// The next message, which must come within 10 s.
WireMessage Receive(FrameStream& stream);
void Transmit(FrameStream& stream, MessageKind kind, const std::vector<std::string>& fields);

// A hello that answers this challenge; `member`: rank, world, build, plan hash, device, process.
std::vector<std::string> HelloTo(const WireMessage& challenge, const std::string& token,
                                 const std::vector<std::string>& member);
// A connection that has said that hello; the server's answers are still to come.
FrameStream ComeAs(const Endpoint& server, const std::string& token, const std::vector<std::string>& member);

// The next connection of a listener, and what a server says to it until the member is welcome; its hello.
FrameStream AcceptNext(const Descriptor& listener);
std::vector<std::string> Challenge(FrameStream& stream);
void Welcome(FrameStream& stream, const std::string& token, const std::vector<std::string>& hello);

}  // namespace engine::launch

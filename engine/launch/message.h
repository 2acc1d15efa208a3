// What the processes of a run say to each other, one message a frame: a kind and some byte strings.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine::launch {

enum class MessageKind : std::uint8_t {
  // From a rank to the server.
  kHello = 1,  // kMagic, nonce, rank, world, build, plan hash, device, process, proof (handshake.h)
  kSet,        // key, value
  kGet,        // number of the question, key
  kTake,       // the same, and the key is forgotten
  kBarrier,    // number of the question, name
  kProgress,  // counter, what the rank is at, how many ms it may stand still (empty: without end), "1" while it waits for others
  kStop,      // asks for a stop of all ranks
  kStopAnswer,  // the last iteration that the rank has begun
  kFailed,      // "failed: no data"
  kGoodbye,
  // From the server to a rank.
  kRefused = 64,  // reason
  kStart,         // process of rank 0: all ranks are here
  kAnswer,        // number of the question, value
  kAlive,
  kStopQuestion,
  kStopAfter,  // iteration
  kAbort,      // reason
  kChallenge,  // kMagic, nonce: the first message of a connection
  kWelcome,    // proof: the member's was right
};

inline constexpr int kHelloFields = 9;

struct WireMessage {
  MessageKind kind = MessageKind::kGoodbye;
  std::vector<std::string> fields;
};

// Of each field its length (u32, little-endian) and its bytes, after one byte for the kind.
std::string Encode(const WireMessage& message);
// Error: no message, or one of so few fields that its reader would miss one.
absl::StatusOr<WireMessage> Decode(std::string_view frame);

// A number in a field; -1 where there is none.
std::int64_t NumberOf(const std::string& field);

}  // namespace engine::launch

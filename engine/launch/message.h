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
  // From a rank to a host that keeps copies of states (copy_server.h): rank, tag, and
  kStoreCopy,   // iteration, bytes, note; the bytes follow when the host is ready
  kListCopies,  // nothing
  kFetchCopy,   // iteration
  kReadCopy,    // iteration, offset, bytes
  // Likewise, of all ranks at once:
  kListAll,
  kForgetOthers,  // tag: copies of any other, and those that were kept aside, are forgotten
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
  // From a host that keeps copies.
  kCopies,  // two copies, each a kCopy without bytes, or empty
  kCopy,    // iteration, note, bytes; these follow
  kReady,
  kAllCopies,  // a line each: rank, iteration, tag, note
  // From a host to the one that leads (roster.h).
  kHostHere,  // where it would lead, where rank 0 would listen, the attempt that it knows, its place there (-1: it is a spare), its places, its dp, where it keeps copies
  kHostEnded,  // where rank 0 would listen next, attempt, exit code, "1": asked to stop, "1": is to blame, verdict, newest copy
  // From the host that leads.
  kHosts,    // a line each: host, where it would lead
  kAttempt,  // number, the host's place (-1: it is a spare), where rank 0 listens, "1": from the disk, places, dp, text, where hosts keep copies
  kRunOver,  // exit code, text
  kLeaderAt,  // where
  // Behind bytes of a connection.
  kDigest,  // their hash
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

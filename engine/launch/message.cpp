#include "engine/launch/message.h"

#include <charconv>
#include <cstddef>
#include <cstring>

#include "engine/base/status.h"

namespace engine::launch {
namespace {

// Fields of a kind; 0 fields for a kind that there is not is told apart by `known`.
struct KindFacts {
  bool known = false;
  std::size_t fields = 0;
};

KindFacts FactsOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::kStop:
    case MessageKind::kGoodbye:
    case MessageKind::kAlive:
    case MessageKind::kStopQuestion:
    case MessageKind::kReady:
    case MessageKind::kListAll:
      return {true, 0};
    case MessageKind::kStopAnswer:
    case MessageKind::kFailed:
    case MessageKind::kRefused:
    case MessageKind::kStart:
    case MessageKind::kStopAfter:
    case MessageKind::kAbort:
    case MessageKind::kWelcome:
    case MessageKind::kDigest:
    case MessageKind::kHosts:
    case MessageKind::kLeaderAt:
    case MessageKind::kForgetOthers:
    case MessageKind::kAllCopies:
      return {true, 1};
    case MessageKind::kSet:
    case MessageKind::kGet:
    case MessageKind::kTake:
    case MessageKind::kBarrier:
    case MessageKind::kAnswer:
    case MessageKind::kChallenge:
    case MessageKind::kListCopies:
    case MessageKind::kCopies:
    case MessageKind::kRunOver:
      return {true, 2};
    case MessageKind::kFetchCopy:
    case MessageKind::kCopy:
      return {true, 3};
    case MessageKind::kStoreCopy:
    case MessageKind::kReadCopy:
      return {true, 5};
    case MessageKind::kHostHere:
    case MessageKind::kHostEnded:
      return {true, 7};
    case MessageKind::kAttempt:
      return {true, 8};
    case MessageKind::kProgress:
      return {true, 4};
    case MessageKind::kHello:
      return {true, kHelloFields};
  }
  return {};
}

}  // namespace

std::string Encode(const WireMessage& message) {
  std::string frame(1, static_cast<char>(message.kind));
  for (const std::string& field : message.fields) {
    const auto length = static_cast<std::uint32_t>(field.size());
    frame.append(reinterpret_cast<const char*>(&length), sizeof(length));
    frame.append(field);
  }
  return frame;
}

absl::StatusOr<WireMessage> Decode(std::string_view frame) {
  if (frame.empty()) return DataLoss("an empty message");
  WireMessage message;
  message.kind = static_cast<MessageKind>(frame.front());
  frame.remove_prefix(1);
  while (!frame.empty()) {
    std::uint32_t length = 0;
    if (frame.size() < sizeof(length)) return DataLoss("a message ends in the middle of a length");
    std::memcpy(&length, frame.data(), sizeof(length));
    frame.remove_prefix(sizeof(length));
    if (frame.size() < length) return DataLoss("a message ends in the middle of a field");
    message.fields.emplace_back(frame.substr(0, length));
    frame.remove_prefix(length);
  }
  const KindFacts facts = FactsOf(message.kind);
  if (!facts.known || message.fields.size() != facts.fields) {
    return DataLoss("a message of kind {} with {} fields", static_cast<int>(message.kind),
                    message.fields.size());
  }
  return message;
}

std::int64_t NumberOf(const std::string& field) {
  std::int64_t number = -1;
  const char* end = field.data() + field.size();
  const auto [last, error] = std::from_chars(field.data(), end, number);
  return error == std::errc() && last == end ? number : -1;
}

}  // namespace engine::launch

#include "engine/metrics/protobuf.h"

#include <bit>

namespace engine::metrics {
namespace {

constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kLengthDelimited = 2;
constexpr int kFixed32 = 5;

// Takes a varint off the front of `message`; nullopt where it does not end.
std::optional<std::uint64_t> TakeVarint(std::string_view& message) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Takes a field's value off the front of `message`; nullopt where it is not whole.
std::optional<ProtoField> TakeValue(std::string_view& message, int wire_type) {
  ProtoField field;
  std::size_t bytes = wire_type == kFixed64 ? 8 : 4;
  if (wire_type == kVarint || wire_type == kLengthDelimited) {
    const std::optional<std::uint64_t> number = TakeVarint(message);
    if (!number) return std::nullopt;
    field.varint = *number;
    bytes = wire_type == kVarint ? 0 : *number;
  } else if (wire_type != kFixed64 && wire_type != kFixed32) {
    return std::nullopt;
  }
  if (bytes > message.size()) return std::nullopt;
  field.bytes = message.substr(0, bytes);
  message.remove_prefix(bytes);
  return field;
}

}  // namespace

std::string LittleEndian(std::uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

void ProtoMessage::AppendVarint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
  bytes_.push_back(static_cast<char>(value));
}

void ProtoMessage::Tag(int field, int wire_type) {
  AppendVarint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

ProtoMessage& ProtoMessage::Varint(int field, std::uint64_t value) {
  Tag(field, kVarint);
  AppendVarint(value);
  return *this;
}

ProtoMessage& ProtoMessage::Double(int field, double value) {
  Tag(field, kFixed64);
  bytes_ += LittleEndian(std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

ProtoMessage& ProtoMessage::Float(int field, float value) {
  Tag(field, kFixed32);
  bytes_ += LittleEndian(std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

ProtoMessage& ProtoMessage::Bytes(int field, std::string_view value) {
  Tag(field, kLengthDelimited);
  AppendVarint(value.size());
  bytes_ += value;
  return *this;
}

std::optional<ProtoField> FindProtoField(std::string_view message, int field) {
  while (!message.empty()) {
    const std::optional<std::uint64_t> tag = TakeVarint(message);
    if (!tag) return std::nullopt;
    const std::optional<ProtoField> value = TakeValue(message, static_cast<int>(*tag & 7));
    if (!value || *tag >> 3 == static_cast<std::uint64_t>(field)) return value;
  }
  return std::nullopt;
}

}  // namespace engine::metrics

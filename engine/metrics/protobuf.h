// Messages in protobuf's wire format (protobuf.dev/programming-guides/encoding), for the few that event files and .wandb
// files are made of. A field is given by its number; it is written where it is added, zero or not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace engine::metrics {

class ProtoMessage {
 public:
  ProtoMessage& Varint(int field, std::uint64_t value);  // int32, int64, enum, bool
  ProtoMessage& Double(int field, double value);
  ProtoMessage& Float(int field, float value);
  ProtoMessage& Bytes(int field, std::string_view value);  // string, bytes
  ProtoMessage& Message(int field, const ProtoMessage& value) { return Bytes(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  void Tag(int field, int wire_type);
  void AppendVarint(std::uint64_t value);

  std::string bytes_;
};

// A message's first field of that number, whose type is varint or length-delimited; nullopt: it has none, or is none of ours.
struct ProtoField {
  std::uint64_t varint = 0;
  std::string_view bytes;
};
std::optional<ProtoField> FindProtoField(std::string_view message, int field);

// The lowest `count` bytes of a number, the lowest first.
std::string LittleEndian(std::uint64_t value, int count);

}  // namespace engine::metrics

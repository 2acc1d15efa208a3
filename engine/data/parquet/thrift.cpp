#include "engine/data/parquet/thrift.h"

namespace engine::parquet {
namespace {

constexpr int kMostDepth = 24;

}  // namespace

bool ThriftReader::Enter() {
  if (!Expect(depth_ < kMostDepth)) return false;
  ++depth_;
  return true;
}

std::uint8_t ThriftReader::Byte() {
  if (!Expect(at_ < bytes_.size())) return 0;
  return static_cast<std::uint8_t>(bytes_[at_++]);
}

std::uint64_t ThriftReader::Varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const std::uint8_t byte = Byte();
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80U) == 0) return value;
  }
  ok_ = false;  // more than ten bytes
  return 0;
}

std::int64_t ThriftReader::ZigZag() {
  const std::uint64_t value = Varint();
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

ThriftReader::Type ThriftReader::FieldHeader(int* id) {
  const std::uint8_t byte = Byte();
  const auto type = static_cast<Type>(byte & 0x0FU);
  if (byte == 0 || !ok_) return Type::kStop;
  const unsigned step = byte >> 4U;
  *id = step > 0 ? *id + static_cast<int>(step) : static_cast<int>(static_cast<std::int16_t>(ZigZag()));
  Expect(type > Type::kStop && type <= Type::kUuid);
  return ok_ ? type : Type::kStop;
}

std::uint64_t ThriftReader::ListHeader(Type* of) {
  const std::uint8_t byte = Byte();
  *of = static_cast<Type>(byte & 0x0FU);
  std::uint64_t count = byte >> 4U;
  if (count == 15) count = Varint();
  // Each element has a byte at least.
  Expect(*of > Type::kStop && *of <= Type::kUuid && count <= bytes_.size() - at_);
  return ok_ ? count : 0;
}

std::int64_t ThriftReader::Int(Type type) {
  if (type == Type::kByte) return static_cast<std::int8_t>(Byte());
  if (!Expect(type == Type::kI16 || type == Type::kI32 || type == Type::kI64)) return 0;
  return ZigZag();
}

bool ThriftReader::Bool(Type type) {
  Expect(type == Type::kTrue || type == Type::kFalse);
  return ok_ && type == Type::kTrue;
}

std::string_view ThriftReader::Binary(Type type) {
  if (!Expect(type == Type::kBinary)) return "";
  const std::uint64_t size = Varint();
  const std::size_t begin = at_;
  SkipBytes(size);
  return ok_ ? bytes_.substr(begin, size) : "";
}

void ThriftReader::SkipBytes(std::uint64_t count) {
  if (Expect(count <= bytes_.size() - at_)) at_ += count;
}

void ThriftReader::SkipValue(Type type, bool of_field) {
  switch (type) {
    case Type::kTrue:
    case Type::kFalse:
      if (!of_field) SkipBytes(1);  // a field's value is its type
      return;
    case Type::kByte:
      return SkipBytes(1);
    case Type::kI16:
    case Type::kI32:
    case Type::kI64:
      (void)Varint();
      return;
    case Type::kDouble:
      return SkipBytes(8);
    case Type::kUuid:
      return SkipBytes(16);
    case Type::kBinary:
      return SkipBytes(Varint());
    case Type::kStruct:
      return Struct([](int, Type) { return false; });
    case Type::kList:
    case Type::kSet:
      return List(Type::kList, [this](Type of) { SkipValue(of, false); });
    case Type::kMap: {
      if (!Enter()) return;
      const std::uint64_t count = Varint();
      const std::uint8_t types = count > 0 ? Byte() : 0;
      Expect(count <= bytes_.size() - at_);
      for (std::uint64_t i = 0; ok_ && i < count; ++i) {
        SkipValue(static_cast<Type>(types >> 4U), false);
        SkipValue(static_cast<Type>(types & 0x0FU), false);
      }
      --depth_;
      return;
    }
    default:
      ok_ = false;
  }
}

}  // namespace engine::parquet

// Apache Thrift's compact protocol, which Parquet's metadata is written in: read, as far as that needs it.
// (thrift/doc/specs/thrift-compact-protocol.md)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace engine::parquet {

// The first byte that is wrong or missing ends everything: what is read from then on is zero or empty, and ok() false. Nothing is
// read outside of the bytes, and no more is done than they have.
class ThriftReader {
 public:
  enum class Type : std::uint8_t {
    kStop = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kI16 = 4,
    kI32 = 5,
    kI64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12,
    kUuid = 13
  };

  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  std::size_t at() const { return at_; }  // bytes read

  // Calls `field(id, type)` for each field, which reads the field's value and returns true, or returns false: then it is skipped.
  template <typename Visit>
  void Struct(Visit&& field) {
    if (!Enter()) return;
    int id = 0;
    while (true) {
      const Type type = FieldHeader(&id);
      if (!ok_ || type == Type::kStop) break;
      if (!field(id, type)) Skip(type);
    }
    --depth_;
  }
  // Calls `element(type)` for each element, which reads it.
  template <typename Visit>
  void List(Type type, Visit&& element) {
    if (!Expect(type == Type::kList) || !Enter()) return;
    Type of = Type::kStop;
    for (std::uint64_t left = ListHeader(&of); ok_ && left > 0; --left) element(of);
    --depth_;
  }

  // Values; a type that is another one is an error.
  std::int64_t Int(Type type);
  bool Bool(Type type);  // of a field
  std::string_view Binary(Type type);
  void Skip(Type type) { SkipValue(type, /*of_field=*/true); }

 private:
  bool Enter();
  bool Expect(bool right) { return ok_ = ok_ && right; }
  std::uint8_t Byte();
  std::uint64_t Varint();
  std::int64_t ZigZag();
  Type FieldHeader(int* id);
  std::uint64_t ListHeader(Type* of);
  void SkipValue(Type type, bool of_field);
  void SkipBytes(std::uint64_t count);

  std::string_view bytes_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool ok_ = true;
};

}  // namespace engine::parquet

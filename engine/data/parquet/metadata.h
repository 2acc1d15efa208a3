// The metadata of a Parquet file: what stands in its footer, and in front of each page.
// (apache/parquet-format: src/main/thrift/parquet.thrift; numbers of fields and enums are that file's)
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::parquet {

enum class PhysicalType : std::int32_t {  // others are not read
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6
};
enum class Repetition : std::int32_t { kRequired = 0, kOptional = 1, kRepeated = 2 };
enum class Codec : std::int32_t {
  kUncompressed = 0,
  kSnappy = 1,
  kGzip = 2,
  kLzo = 3,
  kBrotli = 4,
  kLz4 = 5,
  kZstd = 6,
  kLz4Raw = 7
};
enum class Encoding : std::int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8
};
enum class PageType : std::int32_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

// What the values of a leaf stand for, by its mark: its LogicalType, or without one the older ConvertedType.
enum class Meaning : std::uint8_t {
  kUnmarked,  // bytes are taken for text, numbers for what they are
  kText,
  kSigned,
  kUnsigned,
  kDate,          // days since 1970-01-01
  kMilliseconds,  // since 1970-01-01, 0:00
  kMicroseconds,
  kNanoseconds,
  kOther  // is not read
};

// A node of the schema, which is a tree in pre-order.
struct SchemaElement {
  std::string name;
  std::int32_t type = -1;  // PhysicalType; −1: a group
  Repetition repetition = Repetition::kRequired;
  std::int64_t children = 0;
  bool is_list = false;  // marked as a list
  bool is_map = false;   // marked as a map
  Meaning meaning = Meaning::kUnmarked;
  bool is_utc = true;  // a point in time is UTC's, and not of whatever place

  // Whether it is a leaf of texts.
  bool is_text() const {
    return type == static_cast<std::int32_t>(PhysicalType::kByteArray) &&
           (meaning == Meaning::kUnmarked || meaning == Meaning::kText);
  }
};

struct ColumnChunk {
  std::int32_t type = -1;
  Codec codec = Codec::kUncompressed;
  std::int64_t values = 0;  // with nulls
  std::int64_t uncompressed_bytes = 0;
  std::int64_t begin = 0;  // of its first page, in bytes from the start of the file
  std::int64_t bytes = 0;
  bool elsewhere = false;  // in another file, or encrypted
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<ColumnChunk> columns;  // in the order of the schema's leaves
};

struct Metadata {
  std::vector<SchemaElement> schema;
  std::int64_t rows = 0;
  std::vector<RowGroup> row_groups;
};

// Checks that numbers are not negative and agree with each other, and nothing of the file. An error says what is wrong.
absl::StatusOr<Metadata> ParseMetadata(std::string_view footer);

struct PageHeader {
  PageType type = PageType::kData;
  std::int64_t header_bytes = 0;
  std::int64_t compressed_bytes = 0;
  std::int64_t uncompressed_bytes = 0;
  std::optional<std::uint32_t> crc;
  std::int64_t values = 0;  // with nulls
  std::int64_t rows = -1;   // −1: not known
  Encoding encoding = Encoding::kPlain;
  Encoding definition_encoding = Encoding::kRle;
  Encoding repetition_encoding = Encoding::kRle;
  std::int64_t definition_bytes = 0;  // version 2
  std::int64_t repetition_bytes = 0;  // version 2
  bool is_compressed = true;
};

// The header of the page at the beginning of `bytes`; nullopt: it is not whole there, or is none.
std::optional<PageHeader> ParsePageHeader(std::string_view bytes);

}  // namespace engine::parquet

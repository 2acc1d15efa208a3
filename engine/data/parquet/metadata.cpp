#include "engine/data/parquet/metadata.h"

#include <optional>

#include "engine/base/status.h"
#include "engine/data/parquet/thrift.h"

namespace engine::parquet {
namespace {

using Type = ThriftReader::Type;

// The older marks, ConvertedType.
Meaning MeaningOfMark(std::int64_t mark) {
  constexpr int kUtf8 = 0;
  constexpr int kEnum = 4;
  constexpr int kDate = 6;
  constexpr int kTimestampMillis = 9;
  constexpr int kTimestampMicros = 10;
  constexpr int kUint8 = 11;
  constexpr int kUint64 = 14;
  constexpr int kInt8 = 15;
  constexpr int kInt64 = 18;
  constexpr int kJson = 19;
  if (mark == kUtf8 || mark == kEnum || mark == kJson) return Meaning::kText;
  if (mark == kDate) return Meaning::kDate;
  if (mark == kTimestampMillis) return Meaning::kMilliseconds;
  if (mark == kTimestampMicros) return Meaning::kMicroseconds;
  if (mark >= kUint8 && mark <= kUint64) return Meaning::kUnsigned;
  if (mark >= kInt8 && mark <= kInt64) return Meaning::kSigned;
  return Meaning::kOther;
}

void ApplyMark(std::int64_t mark, SchemaElement* element) {
  constexpr int kMap = 1;
  constexpr int kMapEntry = 2;
  constexpr int kList = 3;
  element->is_list = element->is_list || mark == kList;
  element->is_map = element->is_map || mark == kMap || mark == kMapEntry;
  element->meaning = MeaningOfMark(mark);
}

// TimestampType.
Meaning ReadTimestamp(ThriftReader* reader, SchemaElement* element) {
  Meaning meaning = Meaning::kOther;
  reader->Struct([&](int member, Type member_type) {
    constexpr int kIsAdjustedToUtc = 1;
    constexpr int kUnit = 2;
    if (member == kIsAdjustedToUtc) {
      element->is_utc = reader->Bool(member_type);
      return true;
    }
    if (member != kUnit || member_type != Type::kStruct) return false;
    reader->Struct([&](int unit, Type) {  // a union
      constexpr Meaning kUnits[] = {Meaning::kMilliseconds, Meaning::kMicroseconds, Meaning::kNanoseconds};
      if (unit >= 1 && unit <= 3) meaning = kUnits[unit - 1];
      return false;
    });
    return true;
  });
  return meaning;
}

// IntType.
Meaning ReadInteger(ThriftReader* reader) {
  Meaning meaning = Meaning::kOther;
  reader->Struct([&](int member, Type member_type) {
    constexpr int kIsSigned = 2;
    if (member != kIsSigned) return false;
    meaning = reader->Bool(member_type) ? Meaning::kSigned : Meaning::kUnsigned;
    return true;
  });
  return meaning;
}

// A LogicalType, which is a union: one field tells the type.
std::optional<Meaning> ReadLogicalType(ThriftReader* reader, SchemaElement* element) {
  constexpr int kString = 1;
  constexpr int kMap = 2;
  constexpr int kList = 3;
  constexpr int kEnum = 4;
  constexpr int kDate = 6;
  constexpr int kTimestamp = 8;
  constexpr int kInteger = 10;
  constexpr int kNull = 11;  // the type of a column that has nothing else
  constexpr int kJson = 12;
  std::optional<Meaning> meaning;
  reader->Struct([&](int field, Type type) {
    element->is_list = element->is_list || field == kList;
    element->is_map = element->is_map || field == kMap;
    const bool is_text = field == kString || field == kEnum || field == kJson;
    meaning = is_text          ? Meaning::kText
              : field == kDate ? Meaning::kDate
              : field == kNull ? Meaning::kUnmarked
                               : Meaning::kOther;
    if (type != Type::kStruct || (field != kTimestamp && field != kInteger)) return false;
    meaning = field == kTimestamp ? ReadTimestamp(reader, element) : ReadInteger(reader);
    return true;
  });
  return meaning;
}

SchemaElement ReadSchemaElement(ThriftReader* reader) {
  SchemaElement element;
  std::optional<Meaning> logical;
  reader->Struct([&](int id, Type type) {
    switch (id) {
      case 1:
        element.type = static_cast<std::int32_t>(reader->Int(type));
        return true;
      case 3:
        element.repetition = static_cast<Repetition>(reader->Int(type));
        return true;
      case 4:
        element.name = reader->Binary(type);
        return true;
      case 5:
        element.children = reader->Int(type);
        return true;
      case 6:
        ApplyMark(reader->Int(type), &element);
        return true;
      case 10:
        if (type != Type::kStruct) return false;
        logical = ReadLogicalType(reader, &element);
        return true;
      default:
        return false;
    }
  });
  if (logical.has_value()) element.meaning = *logical;
  return element;
}

void ReadColumnMetadata(ThriftReader* reader, ColumnChunk* chunk) {
  std::int64_t data = -1;
  std::int64_t dictionary = -1;
  reader->Struct([&](int id, Type type) {
    switch (id) {
      case 1:
        chunk->type = static_cast<std::int32_t>(reader->Int(type));
        return true;
      case 4:
        chunk->codec = static_cast<Codec>(reader->Int(type));
        return true;
      case 5:
        chunk->values = reader->Int(type);
        return true;
      case 6:
        chunk->uncompressed_bytes = reader->Int(type);
        return true;
      case 7:
        chunk->bytes = reader->Int(type);
        return true;
      case 9:
        data = reader->Int(type);
        return true;
      case 11:
        dictionary = reader->Int(type);
        return true;
      default:
        return false;
    }
  });
  // Some writers give a dictionary's offset of 0 where there is none.
  chunk->begin = dictionary > 0 && dictionary < data ? dictionary : data;
}

ColumnChunk ReadColumnChunk(ThriftReader* reader) {
  ColumnChunk chunk;
  bool any = false;
  reader->Struct([&](int id, Type type) {
    constexpr int kPath = 1;
    constexpr int kMetadata = 3;
    constexpr int kCrypto = 8;
    chunk.elsewhere = chunk.elsewhere || id == kPath || id == kCrypto;
    if (id != kMetadata || type != Type::kStruct) return false;
    ReadColumnMetadata(reader, &chunk);
    any = true;
    return true;
  });
  chunk.elsewhere = chunk.elsewhere || !any;
  return chunk;
}

RowGroup ReadRowGroup(ThriftReader* reader) {
  RowGroup group;
  reader->Struct([&](int id, Type type) {
    if (id == 1) reader->List(type, [&](Type) { group.columns.push_back(ReadColumnChunk(reader)); });
    if (id == 3) group.rows = reader->Int(type);
    return id == 1 || id == 3;
  });
  return group;
}

// Whether the elements are one tree, and how many leaves it has.
std::optional<std::size_t> LeavesOf(const std::vector<SchemaElement>& schema) {
  std::size_t leaves = 0;
  std::int64_t expected = 1;  // nodes that are still to come
  for (const SchemaElement& element : schema) {
    const bool is_group = element.type < 0;
    if (expected == 0 || element.children < 0 || (!is_group && element.children > 0)) return std::nullopt;
    if (element.repetition < Repetition::kRequired || element.repetition > Repetition::kRepeated)
      return std::nullopt;
    if (!is_group) ++leaves;
    if (element.children > static_cast<std::int64_t>(schema.size())) return std::nullopt;
    expected += element.children - 1;
  }
  if (expected != 0) return std::nullopt;
  return leaves;
}

}  // namespace

absl::StatusOr<Metadata> ParseMetadata(std::string_view footer) {
  ThriftReader reader(footer);
  Metadata metadata;
  reader.Struct([&](int id, Type type) {
    switch (id) {
      case 2:
        reader.List(type, [&](Type) { metadata.schema.push_back(ReadSchemaElement(&reader)); });
        return true;
      case 3:
        metadata.rows = reader.Int(type);
        return true;
      case 4:
        reader.List(type, [&](Type) { metadata.row_groups.push_back(ReadRowGroup(&reader)); });
        return true;
      default:
        return false;
    }
  });
  if (!reader.ok()) return InvalidArgument("the footer is damaged at byte {} of it", reader.at());
  const std::optional<std::size_t> leaves = LeavesOf(metadata.schema);
  if (!leaves.has_value()) return InvalidArgument("the schema is no tree");
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < metadata.row_groups.size(); ++i) {
    const RowGroup& group = metadata.row_groups[i];
    if (group.rows < 0 || group.rows > metadata.rows - rows)
      return InvalidArgument("row group {} has {} rows of {}", i, group.rows, metadata.rows);
    if (group.columns.size() != *leaves)
      return InvalidArgument("row group {} has {} columns, and the schema {}", i, group.columns.size(),
                             *leaves);
    rows += group.rows;
  }
  if (rows != metadata.rows)
    return InvalidArgument("the row groups have {} rows, and the file {}", rows, metadata.rows);
  return metadata;
}

std::optional<PageHeader> ParsePageHeader(std::string_view bytes) {
  ThriftReader reader(bytes);
  PageHeader header;
  bool typed = false;
  const auto data_page = [&](int id, Type type) {
    switch (id) {
      case 1:
        header.values = reader.Int(type);
        return true;
      case 2:
        header.encoding = static_cast<Encoding>(reader.Int(type));
        return true;
      case 3:
        header.definition_encoding = static_cast<Encoding>(reader.Int(type));
        return true;
      case 4:
        header.repetition_encoding = static_cast<Encoding>(reader.Int(type));
        return true;
      default:
        return false;
    }
  };
  const auto dictionary_page = [&](int id, Type type) {
    if (id == 1) header.values = reader.Int(type);
    if (id == 2) header.encoding = static_cast<Encoding>(reader.Int(type));
    return id == 1 || id == 2;
  };
  const auto data_page_v2 = [&](int id, Type type) {
    switch (id) {
      case 1:
        header.values = reader.Int(type);
        return true;
      case 3:
        header.rows = reader.Int(type);
        return true;
      case 4:
        header.encoding = static_cast<Encoding>(reader.Int(type));
        return true;
      case 5:
        header.definition_bytes = reader.Int(type);
        return true;
      case 6:
        header.repetition_bytes = reader.Int(type);
        return true;
      case 7:
        header.is_compressed = reader.Bool(type);
        return true;
      default:
        return false;
    }
  };
  reader.Struct([&](int id, Type type) {
    switch (id) {
      case 1:
        header.type = static_cast<PageType>(reader.Int(type));
        typed = true;
        return true;
      case 2:
        header.uncompressed_bytes = reader.Int(type);
        return true;
      case 3:
        header.compressed_bytes = reader.Int(type);
        return true;
      case 4:
        header.crc = static_cast<std::uint32_t>(reader.Int(type));
        return true;
      case 5:
      case 7:
      case 8:
        if (type != Type::kStruct) return false;
        if (id == 5) reader.Struct(data_page);
        if (id == 7) reader.Struct(dictionary_page);
        if (id == 8) reader.Struct(data_page_v2);
        return true;
      default:
        return false;
    }
  });
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  const auto is_size = [](std::int64_t value) { return value >= 0 && value <= kMost; };
  if (!reader.ok() || !typed || !is_size(header.compressed_bytes) || !is_size(header.uncompressed_bytes) ||
      !is_size(header.values) || !is_size(header.definition_bytes) || !is_size(header.repetition_bytes) ||
      header.definition_bytes + header.repetition_bytes > header.compressed_bytes ||
      header.definition_bytes + header.repetition_bytes > header.uncompressed_bytes || header.rows > kMost) {
    return std::nullopt;
  }
  header.header_bytes = static_cast<std::int64_t>(reader.at());
  return header;
}

}  // namespace engine::parquet

// Parquet files made byte by byte, of what other programs' files do not show.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace engine::parquet {

// A struct of Thrift's compact protocol, field by field in the order of their numbers.
class Fields {
 public:
  Fields& Int(int id, std::int64_t value) {
    if (id == 1) type_ = static_cast<int>(value);
    Head(id, 6);
    Varint(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
    return *this;
  }
  Fields& Text(int id, const std::string& text) {
    Head(id, 8);
    Varint(text.size());
    bytes_ += text;
    return *this;
  }
  Fields& Bool(int id, bool value) {
    Head(id, value ? 1 : 2);
    return *this;
  }
  Fields& Struct(int id, const Fields& fields) {
    Head(id, 12);
    bytes_ += fields.Whole();
    return *this;
  }
  Fields& Structs(int id, const std::vector<Fields>& all) {
    Head(id, 9);
    const bool is_short = all.size() < 15;
    bytes_ += static_cast<char>((is_short ? all.size() : 15) << 4 | 12);
    if (!is_short) Varint(all.size());
    for (const Fields& fields : all) bytes_ += fields.Whole();
    return *this;
  }
  std::string Whole() const { return bytes_ + '\0'; }
  int type() const { return type_; }  // of a schema's leaf, which is field 1; else -1

 private:
  void Head(int id, int type) {
    bytes_ += static_cast<char>((id - last_) << 4 | type);
    last_ = id;
  }
  void Varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
  int last_ = 0;
  int type_ = -1;
};

inline std::string Little(std::uint32_t value) { return {reinterpret_cast<const char*>(&value), 4}; }

// Levels as runs of one number, width 1 or 2: a byte of value each.
inline std::string Levels(const std::vector<int>& levels) {
  std::string bytes;
  for (const int level : levels) bytes += {2, static_cast<char>(level)};
  return Little(static_cast<std::uint32_t>(bytes.size())) + bytes;
}
inline std::string Plain(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) bytes += Little(static_cast<std::uint32_t>(text.size())) + text;
  return bytes;
}

struct TestPage {
  std::int64_t values;
  std::string data;
  std::int64_t crc_off = 0;     // added to the checksum
  std::string statistics = "";  // some bytes in the header
};

// A page of version 1, with a checksum.
inline std::string PageBytes(const TestPage& page) {
  const auto crc = static_cast<std::int32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(page.data.data()), static_cast<uInt>(page.data.size())));
  Fields data;
  data.Int(1, page.values).Int(2, 0).Int(3, 3).Int(4, 3);
  if (!page.statistics.empty()) data.Struct(5, Fields().Text(1, page.statistics));
  const auto size = static_cast<std::int64_t>(page.data.size());
  return Fields().Int(1, 0).Int(2, size).Int(3, size).Int(4, crc + page.crc_off).Struct(5, data).Whole() +
         page.data;
}

// The physical types of the leaves.
inline std::vector<int> TypesOf(const std::vector<Fields>& schema) {
  std::vector<int> types;
  for (const Fields& fields : schema)
    if (fields.type() >= 0) types.push_back(fields.type());
  return types;
}

// A file of one row group, uncompressed: `schema` below the root, the pages of each leaf, `values` of each and `rows` as the footer
// has them.
inline std::string FileOfPages(const std::vector<Fields>& schema,
                               const std::vector<std::vector<TestPage>>& columns, std::int64_t values,
                               std::int64_t rows) {
  std::string file = "PAR1";
  std::vector<Fields> chunks;
  const std::vector<int> types = TypesOf(schema);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto begin = static_cast<std::int64_t>(file.size());
    for (const TestPage& page : columns[i]) file += PageBytes(page);
    const std::int64_t size = static_cast<std::int64_t>(file.size()) - begin;
    const int type = i < types.size() ? types[i] : 6;
    chunks.push_back(Fields().Struct(
        3, Fields().Int(1, type).Int(4, 0).Int(5, values).Int(6, size).Int(7, size).Int(9, begin)));
  }
  std::vector<Fields> all = {Fields().Text(4, "root").Int(5, 1)};
  all.insert(all.end(), schema.begin(), schema.end());
  const std::string footer = Fields()
                                 .Int(1, 1)
                                 .Structs(2, all)
                                 .Int(3, rows)
                                 .Structs(4, {Fields().Structs(1, chunks).Int(3, rows)})
                                 .Whole();
  return file + footer + Little(static_cast<std::uint32_t>(footer.size())) + "PAR1";
}

// The same of one column of several pages, and of several columns of one page each.
inline std::string FileOf(const std::vector<Fields>& schema, const std::vector<TestPage>& pages,
                          std::int64_t values, std::int64_t rows) {
  return FileOfPages(schema, {pages}, values, rows);
}
inline std::string FileOfColumns(const std::vector<Fields>& schema, const std::vector<TestPage>& columns,
                                 std::int64_t values, std::int64_t rows) {
  std::vector<std::vector<TestPage>> pages;
  for (const TestPage& page : columns) pages.push_back({page});
  return FileOfPages(schema, pages, values, rows);
}

}  // namespace engine::parquet

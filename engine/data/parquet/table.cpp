#include "engine/data/parquet/table.h"

#include <fcntl.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "engine/base/status.h"

namespace engine::parquet {
namespace {

constexpr std::string_view kMagic = "PAR1";
constexpr std::string_view kEncrypted = "PARE";
constexpr std::int64_t kTailBytes = 8;  // the footer's length and the magic
constexpr std::int64_t kMostFooterBytes = std::int64_t{1} << 30;

}  // namespace

bool IsParquet(std::string_view first_bytes) {
  if (first_bytes.size() < 8) return false;
  if (!first_bytes.starts_with(kMagic) && !first_bytes.starts_with(kEncrypted)) return false;
  // Behind it stands a page's header or the footer, which begins with a field of no letter; a text may begin with these four.
  return static_cast<unsigned char>(first_bytes[4]) < 0x20 && first_bytes[4] != '\n' &&
         first_bytes[4] != '\r' && first_bytes[4] != '\t';
}

absl::StatusOr<std::shared_ptr<const Table>> Table::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, O_RDONLY));
  return Open(File(descriptor, path));
}

absl::StatusOr<std::shared_ptr<const Table>> Table::Open(File file) {
  std::shared_ptr<Table> table(new Table(std::move(file)));
  ASSIGN_OR_RETURN(table->bytes_, table->file_.Size());
  RETURN_IF_ERROR(table->ReadFooter());
  return table;
}

absl::Status Table::ReadFooter() {
  char tail[kTailBytes] = {};
  const std::int64_t least = kTailBytes + static_cast<std::int64_t>(kMagic.size());
  if (bytes_ >= least) RETURN_IF_ERROR(file_.ReadAt(tail, kTailBytes, bytes_ - kTailBytes));
  const std::string_view magic(tail + 4, 4);
  if (magic == kEncrypted) return Error("the Parquet file is encrypted, which is not read");
  if (magic != kMagic)
    return Error("the Parquet file does not end as one does: it is cut off, or no Parquet file");
  std::uint32_t size = 0;
  std::memcpy(&size, tail, sizeof size);
  const std::int64_t footer_bytes = size;
  if (footer_bytes > bytes_ - least || footer_bytes > kMostFooterBytes)
    return Error("the Parquet footer has {} bytes of a file of {}", footer_bytes, bytes_);
  Bytes footer(static_cast<std::size_t>(footer_bytes));
  const std::int64_t begin = bytes_ - kTailBytes - footer_bytes;
  RETURN_IF_ERROR(file_.ReadAt(footer.data(), footer_bytes, begin));
  absl::StatusOr<Metadata> metadata = ParseMetadata(footer.view());
  if (!metadata.ok()) return Error("{}", Message(metadata.status()));
  metadata_ = *std::move(metadata);
  for (const RowGroup& group : metadata_.row_groups) {
    for (const ColumnChunk& chunk : group.columns) {
      if (chunk.elsewhere || (chunk.begin >= static_cast<std::int64_t>(kMagic.size()) && chunk.bytes >= 0 &&
                              chunk.begin <= begin && chunk.bytes <= begin - chunk.begin &&
                              chunk.values >= 0 && chunk.uncompressed_bytes >= 0)) {
        continue;
      }
      return Error("the Parquet footer has a column of {} bytes at byte {} of a file of {}", chunk.bytes,
                   chunk.begin, bytes_);
    }
  }
  return absl::OkStatus();
}

std::size_t Table::Behind(std::size_t node) const {
  std::int64_t left = 1;
  while (left > 0) left += metadata_.schema[node++].children - 1;
  return node;
}

std::string Table::TextNames() const {
  std::string names;
  const std::vector<SchemaElement>& schema = metadata_.schema;
  for (std::size_t node = 1; node < schema.size(); node = Behind(node)) {
    if (!schema[node].is_text()) continue;
    names += (names.empty() ? "\"" : ", \"") + schema[node].name + "\"";
  }
  return names.empty() ? "none" : names;
}

absl::StatusOr<Column> Table::FindText(const std::string& name) const {
  const std::vector<SchemaElement>& schema = metadata_.schema;
  Column column{.name = name};
  std::size_t node = 0;
  const auto enter = [&](std::size_t child) {
    node = child;
    const Repetition repetition = schema[node].repetition;
    if (repetition != Repetition::kRequired) ++column.definition;
    if (repetition != Repetition::kRepeated) return;
    ++column.repetition;
    column.list_element = column.definition;
  };
  // The child whose name the rest begins with, up to a dot or the end; names with dots count as they are.
  for (std::string_view rest = name; !rest.empty();) {
    std::size_t found = 0;
    std::size_t length = 0;
    const std::size_t behind = Behind(node);
    for (std::size_t child = node + 1; child < behind; child = Behind(child)) {
      const std::string& own = schema[child].name;
      const bool begins = rest.starts_with(own) && (rest.size() == own.size() || rest[own.size()] == '.');
      if (begins && own.size() + 1 > length) {
        found = child;
        length = own.size() + 1;
      }
    }
    if (found == 0) return Error("has no column \"{}\"; columns of texts are: {}", name, TextNames());
    enter(found);
    rest.remove_prefix(std::min(length, rest.size()));
  }
  if (node == 0) return Error("a column has no name");
  // Of a list down to its elements: groups of one.
  while (schema[node].type < 0 && schema[node].children == 1) enter(node + 1);
  if (!schema[node].is_text() || column.repetition > 1) {
    return Error("the column \"{}\" has neither texts nor lists of texts; columns of texts are: {}", name,
                 TextNames());
  }
  for (std::size_t i = 0; i < node; ++i)
    if (schema[i].type >= 0) ++column.leaf;
  return column;
}

absl::StatusOr<Page> Table::ReadHeader(std::int64_t at, std::int64_t end) const {
  constexpr std::int64_t kFirstBytes = std::int64_t{1}
                                       << 12;  // most headers; statistics may make them longer
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 25;
  for (std::int64_t size = kFirstBytes;; size *= 16) {
    const std::int64_t seen = std::min(size, end - at);
    Bytes bytes(static_cast<std::size_t>(seen));
    RETURN_IF_ERROR(file_.ReadAt(bytes.data(), seen, at));
    const std::optional<PageHeader> header = ParsePageHeader(bytes.view());
    if (header.has_value() && header->compressed_bytes <= end - at - header->header_bytes)
      return Page{.header = *header, .begin = at + header->header_bytes};
    if (header.has_value() || seen == end - at || seen >= kMostBytes)
      return Error("the page at byte {} has a damaged header", at);
  }
}

absl::StatusOr<ColumnPages> Table::PagesOf(std::size_t row_group, const Column& column) const {
  const RowGroup& group = metadata_.row_groups[row_group];
  const ColumnChunk& chunk = group.columns[column.leaf];
  if (chunk.elsewhere) return Error("column \"{}\" is encrypted or in another file", column.name);
  if (chunk.type != static_cast<std::int32_t>(column.type))
    return Error("column \"{}\" of row group {} has another type than the schema says", column.name,
                 row_group);
  if (column.repetition == 0 && chunk.values != group.rows)
    return Error("column \"{}\" has {} values in {} rows of row group {}", column.name, chunk.values,
                 group.rows, row_group);
  ColumnPages pages{.codec = chunk.codec, .dictionary = std::nullopt, .data = {}};
  std::int64_t values = 0;
  const std::int64_t end = chunk.begin + chunk.bytes;
  for (std::int64_t at = chunk.begin; values < chunk.values;) {
    if (at >= end)
      return Error("column \"{}\" ends after {} of {} values of row group {}", column.name, values,
                   chunk.values, row_group);
    ASSIGN_OR_RETURN(Page page, ReadHeader(at, end));
    PageHeader& header = page.header;
    at = page.begin + header.compressed_bytes;
    if (header.type == PageType::kDictionary) {
      if (pages.dictionary.has_value() || !pages.data.empty())
        return Error("the page at byte {} is a second dictionary", page.begin);
      pages.dictionary = page;
      continue;
    }
    if (header.type != PageType::kData && header.type != PageType::kDataV2) continue;
    if (column.repetition == 0 && header.rows < 0) header.rows = header.values;
    if (header.values > chunk.values - values || header.rows > header.values ||
        (column.repetition == 0 && header.rows != header.values)) {
      return Error("the page at byte {} has {} values in {} rows, and {} values are left", page.begin,
                   header.values, header.rows, chunk.values - values);
    }
    values += header.values;
    if (header.values > 0) pages.data.push_back(page);
  }
  return pages;
}

absl::StatusOr<Bytes> Table::ReadPage(const Page& page) const {
  Bytes bytes(static_cast<std::size_t>(page.header.compressed_bytes));
  RETURN_IF_ERROR(file_.ReadAt(bytes.data(), page.header.compressed_bytes, page.begin));
  if (page.header.crc.has_value()) {
    const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
    if (crc != *page.header.crc)
      return Error("the page at byte {} is damaged: its checksum differs", page.begin);
  }
  return bytes;
}

}  // namespace engine::parquet

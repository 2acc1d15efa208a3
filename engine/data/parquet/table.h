// A Parquet file: its columns of text, and where their pages are. Only what is asked for is read.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/data/parquet/codec.h"
#include "engine/data/parquet/metadata.h"

namespace engine::parquet {

// Whether these are the first bytes of a Parquet file (8 or more of it), or of an encrypted one.
bool IsParquet(std::string_view first_bytes);

// A leaf of the schema, by Dremel's levels (Melnik et al., 2010; Parquet's README).
struct Column {
  std::string name;      // as it was asked for, or as the schema has it
  std::size_t leaf = 0;  // which one of the schema's leaves
  PhysicalType type = PhysicalType::kByteArray;
  unsigned definition = 0;    // the level at which a value is there
  unsigned repetition = 0;    // 0: a value a row; 1: a list of values a row; more: lists of lists
  unsigned list_element = 0;  // of a list: the definition level from which on it has an element
  Meaning meaning = Meaning::kUnmarked;
  bool is_utc = true;  // of timestamps
};

struct Page {
  PageHeader header;
  std::int64_t begin = 0;  // of the data behind the header, in bytes from the start of the file
};

// The pages of a column in a row group.
struct ColumnPages {
  Codec codec = Codec::kUncompressed;
  std::optional<Page> dictionary;
  std::vector<Page> data;
};

class Table {
 public:
  // Reads and checks the footer. Errors are located: "PATH: error: …", here and below.
  static absl::StatusOr<std::shared_ptr<const Table>> Open(const std::string& path);
  static absl::StatusOr<std::shared_ptr<const Table>> Open(File file);

  const std::string& path() const { return file_.path(); }
  std::int64_t rows() const { return metadata_.rows; }
  std::int64_t file_bytes() const { return bytes_; }
  const std::vector<RowGroup>& row_groups() const { return metadata_.row_groups; }

  // A tree in pre-order, whose first node is the root, and the index behind a node and all below it.
  const std::vector<SchemaElement>& schema() const { return metadata_.schema; }
  std::size_t Behind(std::size_t node) const;

  // A column of texts, or of lists of texts, by its name; from group to group by dots, "meta.body". A list is meant by its own name.
  absl::StatusOr<Column> FindText(const std::string& name) const;

  // Reads the headers of all pages.
  absl::StatusOr<ColumnPages> PagesOf(std::size_t row_group, const Column& column) const;

  // The page's bytes as they are in the file, with the checksum compared if it has one. Safe on any thread.
  absl::StatusOr<Bytes> ReadPage(const Page& page) const;

  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("{}: error: {}", path(), fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  explicit Table(File file) : file_(std::move(file)) {}
  absl::Status ReadFooter();
  absl::StatusOr<Page> ReadHeader(std::int64_t at, std::int64_t end) const;
  // The names of all columns of texts, for a message.
  std::string TextNames() const;

  File file_;
  std::int64_t bytes_ = 0;
  Metadata metadata_;
};

}  // namespace engine::parquet

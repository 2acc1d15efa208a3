// The values of a column, one by one, or its texts row by row.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/parquet/numbers.h"
#include "engine/data/parquet/table.h"

namespace engine::parquet {

// Reads page after page, so that memory is that of a page and of the dictionary. Encodings: plain and by dictionary; of texts delta
// length and delta byte array; of integers delta binary packed; of booleans runs; pages of both versions.
class ColumnReader {
 public:
  struct Levels {
    std::uint32_t definition = 0;
    std::uint32_t repetition = 0;
  };

  // `pages.data`: pages that follow each other; row `first_row` of the file is the first one in them.
  ColumnReader(std::shared_ptr<const Table> table, Column column, ColumnPages pages, std::int64_t first_row)
      : table_(std::move(table)), column_(std::move(column)), pages_(std::move(pages)), row_(first_row) {}

  const Column& column() const { return column_; }

  // The texts of the next row: one, or those of a list; they are valid until the next call. Where there is none, which is an error
  // if the pages have rows left, where one is null or not whole, the error is located at the row.
  absl::Status NextRow(std::vector<std::string_view>* texts);
  // An error if the pages have more rows.
  absl::Status CheckEnd();

  // Entry by entry, where rows are made of several columns. The levels of the next entry, which stays the next one until it is taken;
  // nullopt: there are no more.
  absl::StatusOr<std::optional<Levels>> Peek();
  // Takes the entry of the last Peek. Its value, if it has one, which is so at the column's own definition level: the bytes of plain
  // pages, of a boolean one byte. They are valid until the next call.
  absl::StatusOr<std::string_view> Take();
  // All entries of the row are taken: errors are located at the one behind it.
  void EndRow() { ++row_; }
  // Takes all entries of the next row.
  absl::Status SkipRow();

  // An error at the row that is read.
  absl::Status Damaged(std::string_view what) const;

 private:
  struct LoadedPage;

  absl::Status AppendTexts(std::vector<std::string_view>* texts);
  absl::Status Load(const Page& page);
  absl::Status Split(const PageHeader& header, Bytes bytes, LoadedPage* loaded);
  absl::Status BeginValues(const PageHeader& header, LoadedPage* loaded);
  absl::Status LoadDictionary();
  // The bytes of a value in front of *bytes, which is then what stands behind; nullopt: it is not whole.
  std::optional<std::string_view> TakePlain(std::string_view* bytes) const;
  absl::StatusOr<std::string_view> NextValue();
  absl::StatusOr<std::string_view> NextDeltaText();
  void Release();

  std::shared_ptr<const Table> table_;
  Column column_;
  ColumnPages pages_;
  std::int64_t row_;
  std::size_t next_page_ = 0;
  std::shared_ptr<LoadedPage> page_;
  std::vector<std::shared_ptr<LoadedPage>> held_;  // pages before it in which values are that were given
  std::deque<std::string> built_;                  // values that were given and stand in no page
  std::optional<Levels> peeked_;
  std::optional<Bytes> dictionary_;
  std::vector<std::string_view> words_;  // of the dictionary
};

}  // namespace engine::parquet

// The texts of a column, row by row.
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

// Reads page after page, so that memory is that of a page and of the dictionary. Encodings: plain, by dictionary, delta length and
// delta byte array; pages of both versions.
class ColumnReader {
 public:
  // `pages.data`: pages that follow each other; row `first_row` of the file is the first one in them.
  ColumnReader(std::shared_ptr<const Table> table, TextColumn column, ColumnPages pages,
               std::int64_t first_row)
      : table_(std::move(table)), column_(std::move(column)), pages_(std::move(pages)), row_(first_row) {}

  // The texts of the next row: one, or those of a list; they are valid until the next call. Where there is none, which is an error
  // if the pages have rows left, where one is null or not whole, the error is located at the row.
  absl::Status NextRow(std::vector<std::string_view>* texts);
  // An error if the pages have more rows.
  absl::Status CheckEnd();

 private:
  struct LoadedPage;
  struct Entry {  // of the page's levels
    std::uint32_t definition = 0;
    std::uint32_t repetition = 0;
  };

  absl::Status AppendTexts(std::vector<std::string_view>* texts);
  // The next entry, which stays the next one until it is taken; nullopt: there are no more.
  absl::StatusOr<std::optional<Entry>> Peek();
  absl::Status Load(const Page& page);
  absl::Status Split(const PageHeader& header, Bytes bytes, LoadedPage* loaded);
  absl::Status BeginValues(const PageHeader& header, LoadedPage* loaded);
  absl::Status LoadDictionary();
  absl::StatusOr<std::string_view> NextText();
  absl::Status Damaged(std::string_view what) const;

  std::shared_ptr<const Table> table_;
  TextColumn column_;
  ColumnPages pages_;
  std::int64_t row_;
  std::size_t next_page_ = 0;
  std::shared_ptr<LoadedPage> page_;
  std::vector<std::shared_ptr<LoadedPage>> held_;  // pages before it in which the row has texts
  std::deque<std::string> built_;                  // texts of the row that stand in no page
  std::optional<Entry> peeked_;
  std::optional<Bytes> dictionary_;
  std::vector<std::string_view> words_;  // of the dictionary
};

}  // namespace engine::parquet

// Rows of a Parquet file as records, assembled from its leaves by Dremel's levels (Melnik et al., 2010).
#pragma once

#include <absl/status/statusor.h>

#include <span>
#include <string>
#include <vector>

#include "engine/data/jinja/value.h"
#include "engine/data/parquet/column_reader.h"
#include "engine/data/parquet/table.h"

namespace engine::data {

class TableRecords {
 public:
  // Of the top-level columns those of the names, in the order of the file; a file that has none of them is an error, located. Columns may be
  // texts, integers, floats, booleans, dates and timestamps, and structs, lists and maps from texts of such to any depth that JSON may
  // have. Dates and timestamps become texts ("2024-07-26", "2024-07-26T12:34:56+00:00"), maps objects. A null member of
  // a struct is left out, since writers put one wherever another row has that member, but for `null_members`: a column of lists and
  // a member of its elements, "messages.content".
  static absl::StatusOr<TableRecords> Find(const parquet::Table& table, std::span<const std::string> names,
                                           std::span<const std::string> null_members);

  // The leaves that have to be read.
  const std::vector<parquet::Column>& columns() const { return columns_; }

  // The next row as an object, by readers of these columns that stand at the same row. An error is located at it.
  absl::StatusOr<jinja::Value> NextRow(std::span<parquet::ColumnReader> readers) const;

 private:
  // A column, a member of a struct or an element of a list.
  struct Node {
    std::string name;
    enum class Kind { kLeaf, kStruct, kList, kMap } kind = Kind::kLeaf;
    unsigned definition = 0;    // the level from which on it is there, and not null
    unsigned list_element = 0;  // of a list or map: the definition level from which on it has an element
    unsigned repetition = 0;    // of a list or map: the level of its second element and those behind it
    std::size_t begin = 0;      // its leaves are [begin, end) of columns_
    std::size_t end = 0;
    bool keeps_null = false;     // of a member: a record has it also where it is null
    std::vector<Node> children;  // members; of a list one, its element; of a map key and value
  };
  class Builder;
  class RowReader;

  std::vector<Node> nodes_;
  std::vector<parquet::Column> columns_;
};

}  // namespace engine::data

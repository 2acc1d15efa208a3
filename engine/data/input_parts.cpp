#include "engine/data/input_parts.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/file_stream.h"
#include "engine/data/fingerprint.h"
#include "engine/data/mapped_file.h"
#include "engine/data/parquet/column_reader.h"
#include "engine/data/parquet/table.h"
#include "engine/data/table_records.h"
#include "engine/data/text_parts.h"
#include "engine/storage/copies.h"

namespace engine::data {
namespace {

// Where plain text may be cut: behind a separator's line. Without a separator a file is one document.
CutText CutOf(const InputOptions& options) {
  if (options.format != InputFormat::kText) return BehindLastLine;
  return [separator = options.document_separator](std::string_view text) -> std::size_t {
    if (!separator.has_value()) return 0;
    for (std::size_t end = BehindLastLine(text); end > 0;) {
      const std::size_t begin = BehindLastLine(text.substr(0, end - 1));
      std::string_view line = text.substr(begin, end - 1 - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line == separator) return end;
      end = begin;
    }
    return 0;
  };
}

class TextInput : public InputParts {
 public:
  TextInput(const std::string& path, const InputOptions& options, TextParts parts)
      : path_(path),
        options_(options),
        cut_(CutOf(options)),
        shared_(std::make_shared<const Shared>(path, options)),
        parts_(std::move(parts)) {}

  absl::Status SkipTo(const InputPosition& position) override {
    ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOfFile(path_, position.file_bytes));
    bool same = fingerprint == position.fingerprint;
    if (same) {
      ASSIGN_OR_RETURN(same, parts_.SkipTo(position.at, position.line));
    }
    return same ? absl::OkStatus()
                : FailedPrecondition("{} has changed in its first {} bytes", path_, position.file_bytes);
  }

  absl::StatusOr<std::optional<InputPart>> Next() override {
    const bool is_first = parts_.text_bytes() == 0;
    ASSIGN_OR_RETURN(TextPart text, parts_.Next(options_.part_bytes, cut_));
    // Readers of JSON pass it over themselves.
    if (is_first && options_.format == InputFormat::kText) text.text = WithoutByteOrderMark(text.text);
    if (text.text.empty()) return std::nullopt;
    InputPart part;
    part.text_bytes = static_cast<std::int64_t>(text.text.size());
    part.end = {.at = parts_.text_bytes(),
                .line = parts_.line(),
                .file_bytes = parts_.file_bytes(),
                .fingerprint = parts_.FileFingerprint()};
    if (options_.format == InputFormat::kRecords) {
      part.visit_records = [shared = shared_, text = std::move(text)](const RecordVisitor& visit) {
        return VisitJsonRecords({shared->path, text.first_line}, text.text, visit);
      };
    } else {
      part.visit = [shared = shared_, text = std::move(text)](const KeyVisitor& visit) {
        return Visit(*shared, text, visit);
      };
    }
    return part;
  }

  std::string Fingerprint() const override { return parts_.FileFingerprint(); }

 private:
  struct Shared {  // by the parts, which may live longer
    Shared(std::string path, const InputOptions& options) : path(std::move(path)), options(options) {}
    const std::string path;
    const InputOptions options;
  };
  static absl::Status Visit(const Shared& input, const TextPart& part, const KeyVisitor& visit) {
    const InputOptions& options = input.options;
    if (options.format != InputFormat::kText)
      return VisitJsonLines({input.path, part.first_line}, part.text, options.keys, visit);
    const absl::Status status =
        VisitPlainText(part.text, options.document_separator,
                       [&](std::span<const std::string_view> texts) { return visit(0, texts); });
    return status.ok() ? status : WithContext(status, input.path);
  }

  const std::string path_;
  const InputOptions options_;
  const CutText cut_;
  const std::shared_ptr<const Shared> shared_;
  TextParts parts_;
};

absl::StatusOr<std::string> FingerprintOfTable(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return FingerprintOfBlocks(file.bytes());
}

// Rows of a Parquet file. A part is some pages of the largest column, and those that go with them of the others.
class TableInput : public InputParts {
 public:
  static absl::StatusOr<std::unique_ptr<InputParts>> Open(const std::string& path,
                                                          const InputOptions& options) {
    ASSIGN_OR_RETURN(File file, storage::OpenCopy(path));  // it is read here and there
    ASSIGN_OR_RETURN(std::shared_ptr<const parquet::Table> table, parquet::Table::Open(std::move(file)));
    std::unique_ptr<TableInput> input(new TableInput(table, options));
    if (options.format == InputFormat::kRecords) {
      ASSIGN_OR_RETURN(TableRecords records, TableRecords::Find(*table, options.keys, options.null_members));
      input->columns_ = records.columns();
      input->records_ = std::make_shared<const TableRecords>(std::move(records));
    } else {
      for (const std::string& key : options.keys) {
        ASSIGN_OR_RETURN(input->columns_.emplace_back(), table->FindText(key));
      }
    }
    ASSIGN_OR_RETURN(input->fingerprint_, FingerprintOfTable(path));
    return input;
  }

  absl::Status SkipTo(const InputPosition& position) override {
    if (position.fingerprint != fingerprint_ || position.at > table_->rows())
      return FailedPrecondition("{} has changed", table_->path());
    begin_ = position.at;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<InputPart>> Next() override {
    while (pages_.empty() || begin_ >= group_begin_ + group_rows_) {
      if (next_group_ == table_->row_groups().size()) return std::nullopt;
      RETURN_IF_ERROR(BeginGroup());
    }
    auto rows = std::make_shared<Rows>();
    rows->table = table_;
    rows->columns = columns_;
    rows->begin = begin_;
    rows->end = EndOfPart();
    rows->ends_group = rows->end == group_begin_ + group_rows_;
    InputPart part;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      rows->pages.push_back(PagesOf(i, rows->begin, rows->end, &rows->first_rows.emplace_back()));
      for (const parquet::Page& page : rows->pages.back().data)
        part.text_bytes += page.header.uncompressed_bytes;
    }
    begin_ = rows->end;
    const double share = static_cast<double>(begin_) / static_cast<double>(table_->rows());
    part.end = {.at = begin_,
                .file_bytes = static_cast<std::int64_t>(share * static_cast<double>(table_->file_bytes())),
                .fingerprint = fingerprint_};
    const std::shared_ptr<const Rows> shared = std::move(rows);
    if (records_ != nullptr) {
      part.visit_records = [shared, records = records_](const RecordVisitor& visit) {
        return Visit(*shared, *records, visit);
      };
    } else {
      part.visit = [shared](const KeyVisitor& visit) { return Visit(*shared, visit); };
    }
    return part;
  }

  std::string Fingerprint() const override { return fingerprint_; }

 private:
  // What a part is read from.
  struct Rows {
    std::shared_ptr<const parquet::Table> table;
    std::vector<parquet::Column> columns;
    std::vector<parquet::ColumnPages> pages;  // of each column
    std::vector<std::int64_t> first_rows;     // of these
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool ends_group = false;
  };

  TableInput(std::shared_ptr<const parquet::Table> table, const InputOptions& options)
      : table_(std::move(table)), options_(options) {}

  // Of each column one that stands at the first row.
  static absl::StatusOr<std::vector<parquet::ColumnReader>> ReadersOf(const Rows& rows) {
    std::vector<parquet::ColumnReader> readers;
    for (std::size_t i = 0; i < rows.columns.size(); ++i) {
      readers.emplace_back(rows.table, rows.columns[i], rows.pages[i], rows.first_rows[i]);
      for (std::int64_t row = rows.first_rows[i]; row < rows.begin; ++row)
        RETURN_IF_ERROR(readers[i].SkipRow());
    }
    return readers;
  }
  static absl::Status CheckEnds(const Rows& rows, std::span<parquet::ColumnReader> readers) {
    for (parquet::ColumnReader& reader : readers)
      if (rows.ends_group) RETURN_IF_ERROR(reader.CheckEnd());
    return absl::OkStatus();
  }

  static absl::Status Visit(const Rows& rows, const KeyVisitor& visit) {
    ASSIGN_OR_RETURN(std::vector<parquet::ColumnReader> readers, ReadersOf(rows));
    std::vector<std::string_view> texts;
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::size_t i = 0; i < readers.size(); ++i) {
        RETURN_IF_ERROR(readers[i].NextRow(&texts));
        absl::Status status = CheckUtf8(texts);
        if (status.ok()) status = visit(i, texts);
        if (!status.ok())
          return rows.table->Error("row {} (from 0): column \"{}\": {}", row, rows.columns[i].name,
                                   Message(status));
      }
    }
    return CheckEnds(rows, readers);
  }

  static absl::Status Visit(const Rows& rows, const TableRecords& records, const RecordVisitor& visit) {
    ASSIGN_OR_RETURN(std::vector<parquet::ColumnReader> readers, ReadersOf(rows));
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      ASSIGN_OR_RETURN(const jinja::Value record, records.NextRow(readers));
      if (const absl::Status status = visit(record); !status.ok())
        return rows.table->Error("row {} (from 0): {}", row, InnerMessage(status));
    }
    return CheckEnds(rows, readers);
  }

  absl::Status BeginGroup() {
    group_begin_ += group_rows_;
    group_rows_ = table_->row_groups()[next_group_].rows;
    pages_.clear();
    if (begin_ < group_begin_ + group_rows_) {
      for (const parquet::Column& column : columns_) {
        ASSIGN_OR_RETURN(pages_.emplace_back(), table_->PagesOf(next_group_, column));
      }
    } else {
      pages_.resize(columns_.size());
    }
    ++next_group_;
    return absl::OkStatus();
  }

  // Behind the page of the largest column with which the part is large enough; behind the group where pages do not tell their rows.
  std::int64_t EndOfPart() const {
    for (const parquet::ColumnPages& pages : pages_)
      for (const parquet::Page& page : pages.data)
        if (page.header.rows < 0) return group_begin_ + group_rows_;
    std::int64_t row = group_begin_;
    std::int64_t bytes = 0;
    const auto bytes_of = [](const parquet::ColumnPages& pages) {
      std::int64_t sum = 0;
      for (const parquet::Page& page : pages.data) sum += page.header.uncompressed_bytes;
      return sum;
    };
    const auto largest = std::max_element(pages_.begin(), pages_.end(),
                                          [&](const parquet::ColumnPages& a, const parquet::ColumnPages& b) {
                                            return bytes_of(a) < bytes_of(b);
                                          });
    for (const parquet::Page& page : largest->data) {
      row += page.header.rows;
      if (row > begin_) bytes += page.header.uncompressed_bytes;
      if (row > begin_ && row < group_begin_ + group_rows_ &&
          bytes >= static_cast<std::int64_t>(options_.part_bytes))
        return row;
    }
    return group_begin_ + group_rows_;
  }

  // Those of a column that have rows [begin, end), and the first row in them.
  parquet::ColumnPages PagesOf(std::size_t column, std::int64_t begin, std::int64_t end,
                               std::int64_t* first_row) const {
    const parquet::ColumnPages& all = pages_[column];
    parquet::ColumnPages some{.codec = all.codec, .dictionary = all.dictionary, .data = {}};
    std::int64_t row = group_begin_;
    *first_row = row;
    for (const parquet::Page& page : all.data) {
      if (page.header.rows < 0) {  // not known: all pages
        some.data = all.data;
        *first_row = group_begin_;
        break;
      }
      if (row < end && row + page.header.rows > begin) {
        if (some.data.empty()) *first_row = row;
        some.data.push_back(page);
      }
      row += page.header.rows;
    }
    return some;
  }

  static absl::Status CheckUtf8(std::span<const std::string_view> texts) {
    for (const std::string_view text : texts)
      if (!simdjson::validate_utf8(text.data(), text.size())) return InvalidArgument("the text is not UTF-8");
    return absl::OkStatus();
  }

  const std::shared_ptr<const parquet::Table> table_;
  const InputOptions options_;
  std::vector<parquet::Column> columns_;
  std::shared_ptr<const TableRecords> records_;  // of these; null: a column is a key
  std::string fingerprint_;
  std::int64_t begin_ = 0;  // the first row of the next part
  std::size_t next_group_ = 0;
  std::int64_t group_begin_ = 0;  // of the group before that
  std::int64_t group_rows_ = 0;
  std::vector<parquet::ColumnPages> pages_;  // its, of each column
};

absl::StatusOr<bool> HoldsTable(const std::string& path) {
  ASSIGN_OR_RETURN(FileStream file, FileStream::Open(path));
  char first[8];
  ASSIGN_OR_RETURN(const std::size_t got, file.Read(first, sizeof first));
  return parquet::IsParquet({first, got});
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputParts>> InputParts::Open(const std::string& path,
                                                             const InputOptions& options) {
  ASSIGN_OR_RETURN(const bool holds_table, HoldsTable(path));
  if (holds_table) {
    if (options.format == InputFormat::kText)
      return InvalidArgument("{}: error: is a Parquet file, and no plain text", path);
    return TableInput::Open(path, options);
  }
  if (options.format == InputFormat::kParquet) return InvalidArgument("{}: error: is no Parquet file", path);
  ASSIGN_OR_RETURN(TextParts parts, TextParts::Open(path));
  return std::make_unique<TextInput>(path, options, std::move(parts));
}

absl::StatusOr<std::string> FingerprintOfInput(const std::string& path) {
  ASSIGN_OR_RETURN(const bool holds_table, HoldsTable(path));
  if (holds_table) return FingerprintOfTable(path);
  return FingerprintOfFile(path, std::numeric_limits<std::int64_t>::max());
}

}  // namespace engine::data

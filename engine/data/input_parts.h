// Input files of a build of data sets, cut into parts that are read on many threads.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/records.h"
#include "engine/data/text_inputs.h"

namespace engine::data {

// What documents are: texts in lines of JSON, or in rows of Parquet files, which their first bytes tell; those of Parquet alone; plain text;
// whole lines of JSON, or rows of Parquet files.
enum class InputFormat { kJsonLines, kParquet, kText, kRecords };

struct InputOptions {
  InputFormat format = InputFormat::kJsonLines;
  // Columns of Parquet, of records those that are read where they are there; of plain text: one, which is not looked at.
  std::vector<std::string> keys = {"text"};
  std::vector<std::string> null_members;  // of records in tables (table_records.h)
  // Text: a line between documents, which may be blank; none: a file is a document.
  std::optional<std::string> document_separator = std::nullopt;
  std::size_t part_bytes = std::size_t{1} << 20;  // of text, about
};

// Where an input can be gone on with.
struct InputPosition {
  std::int64_t at = 0;    // bytes of text, or rows of a table, before it
  std::int64_t line = 1;  // of text: the first one behind it
  // How much of the file had been read by then, which may be more, and the fingerprint of that much; of a table about how much, and
  // the fingerprint of the file.
  std::int64_t file_bytes = 0;
  std::string fingerprint;
};

// Some documents of an input, one behind the other.
struct InputPart {
  // Calls the visitor for each key of each document, in order; of records the second one for each. A failure is located. Safe on
  // any thread.
  std::function<absl::Status(const KeyVisitor&)> visit;
  std::function<absl::Status(const RecordVisitor&)> visit_records;
  std::int64_t text_bytes = 0;
  InputPosition end;
};

class InputParts {
 public:
  virtual ~InputParts() = default;

  static absl::StatusOr<std::unique_ptr<InputParts>> Open(const std::string& path,
                                                          const InputOptions& options);

  // Goes on from a place where a part of the same file, read by the same format, has ended; before the first Next. A file that
  // is another one up to there is FailedPrecondition.
  virtual absl::Status SkipTo(const InputPosition& position) = 0;

  // nullopt: there are no more. An error is of what stands behind all parts so far.
  virtual absl::StatusOr<std::optional<InputPart>> Next() = 0;

  // Of the whole file (fingerprint.h), once there are no more parts; of a table by blocks.
  virtual std::string Fingerprint() const = 0;
};

// The same without parts.
absl::StatusOr<std::string> FingerprintOfInput(const std::string& path);

}  // namespace engine::data

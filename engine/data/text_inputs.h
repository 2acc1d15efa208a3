// Input files of the preprocessor and the documents in them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine::data {

// Entries of directories that are no text, or not known to be.
struct PassedOver {
  std::int64_t hidden = 0;  // files and folders
  std::int64_t links = 0;   // symbolic ones
  std::int64_t tables = 0;  // *.dat and *.u8, which fortune(6) keeps beside its texts
  std::int64_t others = 0;  // pipes, sockets, devices

  std::int64_t total() const { return hidden + links + tables + others; }
};

// The files that `inputs` name. A directory stands for the regular files under it, in order of their paths,
// but for those that it passes over and counts; so does s3:// with a / at its end, where hidden is what has a name that begins with a dot.
// Whether another s3:// or http(s):// is there is seen when it is read.
absl::StatusOr<std::vector<std::string>> ListInputs(const std::vector<std::string>& inputs,
                                                    PassedOver* passed_over);

// A file's text without the mark that programs of Windows begin UTF-8 with.
std::string_view WithoutByteOrderMark(std::string_view file);

// One document: the texts of its sequences. They are valid during the call.
using DocumentVisitor = std::function<absl::Status(std::span<const std::string_view> sequences)>;
// The same of the key of that index.
using KeyVisitor = std::function<absl::Status(std::size_t key, std::span<const std::string_view> sequences)>;

// Where text stands in a file.
struct TextPlace {
  std::string path;
  std::int64_t first_line = 1;
};

// One JSON object a line; each of `keys` is the text, or a list of texts, of one document. A key with dots that no object has as
// it is goes from object to object: "meta.body". Lines of white space are skipped. Numbers may be of any size, as in JSON. A
// failure is located: "file:line: error: ...".
absl::Status VisitJsonLines(const TextPlace& place, std::string_view contents,
                            std::span<const std::string> keys, const KeyVisitor& visit);

// Documents of plain text stand between lines that are exactly `separator`, an empty one between blank lines (without any, the
// whole is a document); two separators with nothing between them make none.
absl::Status VisitPlainText(std::string_view contents, std::optional<std::string_view> separator,
                            const DocumentVisitor& visit);

}  // namespace engine::data

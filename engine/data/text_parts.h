// Text files of any size, read part by part.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/data/mapped_file.h"

namespace engine::data {

// Some of a file's text, which lives as long as this does.
struct TextPart {
  std::string_view text;           // empty: the file has ended
  std::int64_t first_line = 1;     // of the file, from 1 on
  std::shared_ptr<const void> of;  // what holds the text
};

// How many of the text's bytes may be a part of their own: 0 where none are, as far as is known.
using CutText = std::function<std::size_t(std::string_view text)>;
std::size_t BehindLastLine(std::string_view text);

// The text of a file, or what is in it where it is compressed, as its first bytes tell: by gzip (RFC 1952; members one behind the
// other are one text, zeros may follow them) or by Zstandard (RFC 8878; any frames, windows of up to 2 GiB).
// Compressed data that is cut off or damaged is an error at the file, once all of the text before that could be cut has been given.
class TextParts {
 public:
  // What a compressed file is made into text with.
  class Decompressor {
   public:
    virtual ~Decompressor() = default;
    // Appends at least one byte to *text, unless the data has ended.
    virtual absl::Status AppendTo(std::string* text) = 0;
    virtual bool ended() const = 0;
  };

  static absl::StatusOr<TextParts> Open(const std::string& path);

  // The next part, of about `bytes` and more, that ends where `cut` says; the last one ends where the text does. A part of more
  // than 2 GiB is an error: a line, say, that is none.
  absl::StatusOr<TextPart> Next(std::size_t bytes, const CutText& cut);

  std::string Fingerprint() const;  // of all bytes of the file (fingerprint.h)
  std::int64_t file_bytes() const { return static_cast<std::int64_t>(file_->bytes().size()); }

 private:
  explicit TextParts(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<TextPart> NextOfPlain(std::size_t bytes, const CutText& cut);
  absl::StatusOr<TextPart> NextOfCompressed(std::size_t bytes, const CutText& cut);
  absl::Status TooLong(std::size_t bytes) const;

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::unique_ptr<Decompressor> decompressor_;  // null: the file is plain
  std::size_t at_ = 0;                          // of a plain file
  std::string rest_;                            // of a compressed one: text behind the last cut
  absl::Status failed_;                         // what has ended it too early
  std::int64_t line_ = 1;
};

}  // namespace engine::data

// Text files of any size, read part by part.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

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
// Memory is that of a part and of some hundred KiB more, or of the window.
class TextParts {
 public:
  // What text is read from.
  class Stream {
   public:
    virtual ~Stream() = default;
    // At least one of `bytes` bytes, which are not 0; 0: the text has ended.
    virtual absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes) = 0;
    virtual std::int64_t file_bytes() const = 0;      // read of the file so far
    virtual std::string FileFingerprint() const = 0;  // of them (fingerprint.h)
  };

  static absl::StatusOr<TextParts> Open(const std::string& path);

  // The next part, of about `bytes` and more, that ends where `cut` says; the last one ends where the text does. A part of more
  // than 2 GiB is an error: a line, say, that is none.
  absl::StatusOr<TextPart> Next(std::size_t bytes, const CutText& cut);

  // Where the last part has ended.
  std::int64_t text_bytes() const { return text_bytes_; }
  std::int64_t line() const { return line_; }
  // Goes on from such a place, for which nothing may have been read yet. False: the text is shorter.
  absl::StatusOr<bool> SkipTo(std::int64_t text_bytes, std::int64_t line);

  // Of the file, which is read ahead of the last part; all of it once the text has ended.
  std::int64_t file_bytes() const { return stream_->file_bytes(); }
  std::string FileFingerprint() const { return stream_->FileFingerprint(); }

 private:
  TextParts(std::string path, std::unique_ptr<Stream> stream)
      : path_(std::move(path)), stream_(std::move(stream)) {}
  absl::Status TooLong(std::size_t bytes) const;

  std::string path_;
  std::unique_ptr<Stream> stream_;
  std::string rest_;     // text behind the last part
  bool ended_ = false;   // nothing is behind `rest_`
  absl::Status failed_;  // what has ended it too early
  std::int64_t text_bytes_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace engine::data

#include "engine/data/text_parts.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/file_stream.h"

namespace engine::data {
namespace {

constexpr std::size_t kMostPartBytes = std::size_t{2} << 30;
constexpr std::size_t kReadBytes = std::size_t{256} << 10;  // of compressed data, at a time

bool BeginsWith(std::string_view bytes, std::initializer_list<unsigned char> magic) {
  if (bytes.size() < magic.size()) return false;
  return std::equal(magic.begin(), magic.end(), bytes.begin(),
                    [](unsigned char a, char b) { return a == static_cast<unsigned char>(b); });
}
bool IsGzip(std::string_view bytes) { return BeginsWith(bytes, {0x1F, 0x8B}); }
// Frames, and frames that are skipped: 0x184D2A50 to 5F.
bool IsZstd(std::string_view bytes) {
  if (BeginsWith(bytes, {0x28, 0xB5, 0x2F, 0xFD})) return true;
  const bool skipped = bytes.size() >= 4 && (static_cast<unsigned>(bytes[0]) & 0xF0U) == 0x50;
  return skipped && BeginsWith(bytes.substr(1), {0x2A, 0x4D, 0x18});
}

class PlainText : public TextParts::Stream {
 public:
  explicit PlainText(FileStream file) : file_(std::move(file)) {}
  absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes) override { return file_.Read(out, bytes); }
  std::int64_t file_bytes() const override { return file_.at(); }
  std::string FileFingerprint() const override { return file_.Fingerprint(); }

 private:
  FileStream file_;
};

// A stream of compressed data, read block by block.
class Compressed : public TextParts::Stream {
 public:
  explicit Compressed(FileStream file) : file_(std::move(file)), block_(kReadBytes, '\0') {}
  std::int64_t file_bytes() const override { return file_.at(); }
  std::string FileFingerprint() const override { return file_.Fingerprint(); }

 protected:
  // The next bytes of the file; none: it has ended.
  absl::StatusOr<std::string_view> NextBlock() {
    ASSIGN_OR_RETURN(const std::size_t got, file_.Read(block_.data(), block_.size()));
    return std::string_view(block_).substr(0, got);
  }
  const std::string& path() const { return file_.path(); }

 private:
  FileStream file_;
  std::string block_;
};

class Gunzip : public Compressed {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Make(FileStream file) {
    std::unique_ptr<Gunzip> made(new Gunzip(std::move(file)));
    constexpr int kGzip = 16;  // beside the window's bits: a header and a checksum as RFC 1952 has them
    if (inflateInit2(&made->stream_, kGzip + MAX_WBITS) != Z_OK) return Internal("zlib does not start");
    return made;
  }
  ~Gunzip() override { inflateEnd(&stream_); }

  absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes) override {
    constexpr std::size_t kMost = std::size_t{1} << 30;  // zlib counts in 32 bits
    const auto room = static_cast<uInt>(std::min(bytes, kMost));
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = room;
    while (stream_.avail_out == room) {
      RETURN_IF_ERROR(FillIn());
      if (between_ && in_ended_) return 0;
      if (between_) {
        RETURN_IF_ERROR(BeginMember());
      } else {
        RETURN_IF_ERROR(Inflate());
      }
    }
    return room - stream_.avail_out;
  }

 private:
  explicit Gunzip(FileStream file) : Compressed(std::move(file)) {}

  std::int64_t at() const { return file_bytes() - stream_.avail_in; }

  absl::Status FillIn() {
    if (stream_.avail_in > 0 || in_ended_) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string_view block, NextBlock());
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
    stream_.avail_in = static_cast<uInt>(block.size());
    in_ended_ = block.empty();
    return absl::OkStatus();
  }

  absl::Status Inflate() {
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      between_ = true;
      return absl::OkStatus();
    }
    if (code == Z_BUF_ERROR && in_ended_)
      return InvalidArgument("{}: error: gzip data is cut off after {} bytes", path(), file_bytes());
    if (code == Z_OK || code == Z_BUF_ERROR) return absl::OkStatus();
    return InvalidArgument("{}: error: gzip data is damaged at byte {}{}{}", path(), at(),
                           stream_.msg == nullptr ? "" : ": ", stream_.msg == nullptr ? "" : stream_.msg);
  }

  // Behind a member: another one, or zeros to the end.
  absl::Status BeginMember() {
    while (stream_.avail_in > 0 && *stream_.next_in == 0) {
      zeros_ = true;
      ++stream_.next_in;
      --stream_.avail_in;
    }
    if (stream_.avail_in == 0) return absl::OkStatus();
    constexpr Bytef kFirst = 0x1F;  // what else has to follow, inflate knows
    if (zeros_ || *stream_.next_in != kFirst) {
      return InvalidArgument("{}: error: from byte {} on there is something else than gzip data", path(),
                             at());
    }
    inflateReset(&stream_);
    between_ = false;
    return absl::OkStatus();
  }

  z_stream stream_ = {};
  bool between_ = false;  // members
  bool zeros_ = false;
  bool in_ended_ = false;
};

class Unzstd : public Compressed {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Make(FileStream file) {
    std::unique_ptr<Unzstd> made(new Unzstd(std::move(file)));
    constexpr int kMostWindowLog = 31;
    if (made->context_ == nullptr ||
        ZSTD_isError(ZSTD_DCtx_setParameter(made->context_, ZSTD_d_windowLogMax, kMostWindowLog)))
      return Internal("Zstandard does not start");
    return made;
  }
  ~Unzstd() override { ZSTD_freeDCtx(context_); }

  absl::StatusOr<std::size_t> Read(char* out, std::size_t bytes) override {
    ZSTD_outBuffer output = {out, bytes, 0};
    while (output.pos == 0) {
      if (in_.pos == in_.size && !in_ended_) {
        ASSIGN_OR_RETURN(const std::string_view block, NextBlock());
        in_ = {block.data(), block.size(), 0};
        in_ended_ = block.empty();
      }
      if (in_ended_ && between_) return 0;
      const std::size_t before = in_.pos;
      const std::size_t code = ZSTD_decompressStream(context_, &output, &in_);
      if (ZSTD_isError(code)) {
        return InvalidArgument("{}: error: Zstandard data is damaged at byte {}: {}", path(),
                               file_bytes() - static_cast<std::int64_t>(in_.size - in_.pos),
                               ZSTD_getErrorName(code));
      }
      between_ = code == 0;
      if (in_ended_ && !between_ && output.pos == 0 && in_.pos == before)
        return InvalidArgument("{}: error: Zstandard data is cut off after {} bytes", path(), file_bytes());
    }
    return output.pos;
  }

 private:
  explicit Unzstd(FileStream file) : Compressed(std::move(file)), context_(ZSTD_createDCtx()) {}

  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  ZSTD_DCtx* context_;
  bool between_ = true;  // frames
  bool in_ended_ = false;
};

std::int64_t LinesOf(std::string_view text) {
  std::int64_t lines = 0;
  for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) ++lines;
  return lines;
}

// Bytes that nobody sets to anything before they are read into.
class TextBuffer {
 public:
  explicit TextBuffer(std::size_t capacity) : capacity_(capacity), data_(new char[capacity]) {}
  std::string_view text() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  char* end() { return data_.get() + size_; }
  void Added(std::size_t bytes) { size_ += bytes; }
  void Reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    std::unique_ptr<char[]> larger(new char[capacity]);
    std::memcpy(larger.get(), data_.get(), size_);
    data_ = std::move(larger);
    capacity_ = capacity;
  }

 private:
  std::size_t capacity_;
  std::size_t size_ = 0;
  std::unique_ptr<char[]> data_;
};

}  // namespace

std::size_t BehindLastLine(std::string_view text) {
  const std::size_t newline = text.rfind('\n');
  return newline == std::string_view::npos ? 0 : newline + 1;
}

absl::StatusOr<TextParts> TextParts::Open(const std::string& path) {
  ASSIGN_OR_RETURN(FileStream first, FileStream::Open(path));
  char begin[4];
  ASSIGN_OR_RETURN(const std::size_t got, first.Read(begin, sizeof begin));
  const std::string_view magic(begin, got);
  ASSIGN_OR_RETURN(FileStream file, FileStream::Open(path));
  std::unique_ptr<Stream> stream;
  if (IsGzip(magic)) {
    ASSIGN_OR_RETURN(stream, Gunzip::Make(std::move(file)));
  } else if (IsZstd(magic)) {
    ASSIGN_OR_RETURN(stream, Unzstd::Make(std::move(file)));
  } else {
    stream = std::make_unique<PlainText>(std::move(file));
  }
  return TextParts(path, std::move(stream));
}

absl::Status TextParts::TooLong(std::size_t bytes) const {
  if (bytes <= kMostPartBytes) return absl::OkStatus();
  return InvalidArgument("{}:{}: error: more than 2 GiB without an end of a document", path_, line_);
}

absl::StatusOr<TextPart> TextParts::Next(std::size_t bytes, const CutText& cut) {
  bytes = std::max(bytes, std::size_t{1});
  const auto buffer = std::make_shared<TextBuffer>(std::max(bytes, rest_.size()));
  std::memcpy(buffer->end(), rest_.data(), rest_.size());
  buffer->Added(rest_.size());
  std::size_t end = 0;
  for (std::size_t seen = bytes; end == 0; seen = 2 * std::max(seen, buffer->size())) {
    buffer->Reserve(seen);
    while (buffer->size() < seen && failed_.ok() && !ended_) {
      const absl::StatusOr<std::size_t> got = stream_->Read(buffer->end(), seen - buffer->size());
      if (got.ok()) buffer->Added(*got);
      failed_ = got.status();
      ended_ = got.ok() && *got == 0;
    }
    if (ended_ && buffer->size() <= seen) break;
    end = cut(buffer->text());
    if (end == 0) RETURN_IF_ERROR(failed_);
    if (end == 0) RETURN_IF_ERROR(TooLong(buffer->size()));
  }
  if (end == 0) end = buffer->size();
  const TextPart part = {.text = buffer->text().substr(0, end), .first_line = line_, .of = buffer};
  rest_ = buffer->text().substr(end);
  text_bytes_ += static_cast<std::int64_t>(end);
  line_ += LinesOf(part.text);
  return part;
}

absl::StatusOr<bool> TextParts::SkipTo(std::int64_t text_bytes, std::int64_t line) {
  ENGINE_CHECK(text_bytes_ == 0 && rest_.empty(), "{} has been read from", path_);
  std::string block(kReadBytes, '\0');
  while (text_bytes_ < text_bytes) {
    const std::int64_t wanted = std::min(static_cast<std::int64_t>(block.size()), text_bytes - text_bytes_);
    ASSIGN_OR_RETURN(const std::size_t got, stream_->Read(block.data(), static_cast<std::size_t>(wanted)));
    if (got == 0) return false;
    text_bytes_ += static_cast<std::int64_t>(got);
  }
  line_ = line;
  return true;
}

}  // namespace engine::data

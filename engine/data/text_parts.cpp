#include "engine/data/text_parts.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/fingerprint.h"

namespace engine::data {
namespace {

constexpr std::size_t kMostPartBytes = std::size_t{2} << 30;
constexpr std::size_t kDecompressedBytes = std::size_t{256} << 10;  // at a time

using Bytes = std::span<const std::byte>;

bool BeginsWith(Bytes bytes, std::initializer_list<unsigned char> magic) {
  if (bytes.size() < magic.size()) return false;
  return std::equal(magic.begin(), magic.end(), bytes.begin(),
                    [](unsigned char a, std::byte b) { return a == std::to_integer<unsigned char>(b); });
}
bool IsGzip(Bytes bytes) { return BeginsWith(bytes, {0x1F, 0x8B}); }
// Frames, and frames that are skipped: 0x184D2A50 to 5F.
bool IsZstd(Bytes bytes) {
  if (BeginsWith(bytes, {0x28, 0xB5, 0x2F, 0xFD})) return true;
  const bool skipped = bytes.size() >= 4 && (std::to_integer<unsigned>(bytes[0]) & 0xF0U) == 0x50;
  return skipped && BeginsWith(bytes.subspan(1), {0x2A, 0x4D, 0x18});
}

class Gunzip : public TextParts::Decompressor {
 public:
  static absl::StatusOr<std::unique_ptr<Decompressor>> Make(const std::string& path, Bytes data) {
    std::unique_ptr<Gunzip> made(new Gunzip(path, data));
    constexpr int kGzip = 16;  // beside the window's bits: a header and a checksum as RFC 1952 has them
    if (inflateInit2(&made->stream_, kGzip + MAX_WBITS) != Z_OK) return Internal("zlib does not start");
    return made;
  }
  ~Gunzip() override { inflateEnd(&stream_); }
  bool ended() const override { return ended_; }

  absl::Status AppendTo(std::string* text) override {
    const std::size_t before = text->size();
    text->resize(before + kDecompressedBytes);
    std::size_t room = kDecompressedBytes;
    absl::Status status;
    while (status.ok() && !ended_ && room == kDecompressedBytes) status = Step(text->data() + before, &room);
    text->resize(before + kDecompressedBytes - room);
    return status;
  }

 private:
  Gunzip(std::string path, Bytes data) : path_(std::move(path)), data_(data) {}

  std::size_t at() const { return taken_ - stream_.avail_in; }

  absl::Status Step(char* out, std::size_t* room) {
    constexpr std::size_t kMostInput = std::size_t{1} << 30;  // zlib counts in 32 bits
    if (stream_.avail_in == 0) {
      const Bytes input = data_.subspan(taken_).first(std::min(kMostInput, data_.size() - taken_));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
      stream_.avail_in = static_cast<uInt>(input.size());
      taken_ += input.size();
    }
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(*room);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    *room = stream_.avail_out;
    if (code == Z_STREAM_END) return EndMember();
    if (code == Z_BUF_ERROR && at() == data_.size())
      return InvalidArgument("{}: error: gzip data is cut off after {} bytes", path_, data_.size());
    if (code != Z_OK && code != Z_BUF_ERROR) {
      return InvalidArgument("{}: error: gzip data is damaged at byte {}{}{}", path_, at(),
                             stream_.msg == nullptr ? "" : ": ", stream_.msg == nullptr ? "" : stream_.msg);
    }
    return absl::OkStatus();
  }

  absl::Status EndMember() {
    const Bytes rest = data_.subspan(at());
    if (std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; })) {
      ended_ = true;
    } else if (!IsGzip(rest)) {
      return InvalidArgument("{}: error: from byte {} on there is something else than gzip data", path_,
                             at());
    } else {
      inflateReset(&stream_);
    }
    return absl::OkStatus();
  }

  std::string path_;
  Bytes data_;
  std::size_t taken_ = 0;
  z_stream stream_ = {};
  bool ended_ = false;
};

class Unzstd : public TextParts::Decompressor {
 public:
  static absl::StatusOr<std::unique_ptr<Decompressor>> Make(const std::string& path, Bytes data) {
    std::unique_ptr<Unzstd> made(new Unzstd(path, data));
    constexpr int kMostWindowLog = 31;
    if (made->context_ == nullptr ||
        ZSTD_isError(ZSTD_DCtx_setParameter(made->context_, ZSTD_d_windowLogMax, kMostWindowLog)))
      return Internal("Zstandard does not start");
    return made;
  }
  ~Unzstd() override { ZSTD_freeDCtx(context_); }
  bool ended() const override { return ended_; }

  absl::Status AppendTo(std::string* text) override {
    const std::size_t before = text->size();
    text->resize(before + kDecompressedBytes);
    ZSTD_outBuffer out = {text->data() + before, kDecompressedBytes, 0};
    absl::Status status;
    while (status.ok() && !ended_ && out.pos == 0) status = Step(&out);
    text->resize(before + out.pos);
    return status;
  }

 private:
  Unzstd(std::string path, Bytes data)
      : path_(std::move(path)), in_{data.data(), data.size(), 0}, context_(ZSTD_createDCtx()) {}

  absl::Status Step(ZSTD_outBuffer* out) {
    const std::size_t code = ZSTD_decompressStream(context_, out, &in_);
    if (ZSTD_isError(code)) {
      return InvalidArgument("{}: error: Zstandard data is damaged at byte {}: {}", path_, in_.pos,
                             ZSTD_getErrorName(code));
    }
    if (in_.pos < in_.size || out->pos == out->size) return absl::OkStatus();
    if (code > 0 && out->pos == 0)
      return InvalidArgument("{}: error: Zstandard data is cut off after {} bytes", path_, in_.size);
    ended_ = code == 0;
    return absl::OkStatus();
  }

  std::string path_;
  ZSTD_inBuffer in_;
  ZSTD_DCtx* context_;
  bool ended_ = false;
};

std::int64_t LinesOf(std::string_view text) {
  return static_cast<std::int64_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

std::size_t BehindLastLine(std::string_view text) {
  const std::size_t newline = text.rfind('\n');
  return newline == std::string_view::npos ? 0 : newline + 1;
}

absl::StatusOr<TextParts> TextParts::Open(const std::string& path) {
  TextParts parts(path);
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  parts.file_ = std::make_shared<const MappedFile>(std::move(file));
  const Bytes bytes = parts.file_->bytes();
  if (IsGzip(bytes)) {
    ASSIGN_OR_RETURN(parts.decompressor_, Gunzip::Make(path, bytes));
  } else if (IsZstd(bytes)) {
    ASSIGN_OR_RETURN(parts.decompressor_, Unzstd::Make(path, bytes));
  }
  return parts;
}

std::string TextParts::Fingerprint() const { return FingerprintOfAll(file_->bytes()); }

absl::StatusOr<TextPart> TextParts::Next(std::size_t bytes, const CutText& cut) {
  ASSIGN_OR_RETURN(TextPart part,
                   decompressor_ == nullptr ? NextOfPlain(bytes, cut) : NextOfCompressed(bytes, cut));
  part.first_line = line_;
  line_ += LinesOf(part.text);
  return part;
}

absl::Status TextParts::TooLong(std::size_t bytes) const {
  if (bytes <= kMostPartBytes) return absl::OkStatus();
  return InvalidArgument("{}:{}: error: more than 2 GiB without an end of a document", path_, line_);
}

absl::StatusOr<TextPart> TextParts::NextOfPlain(std::size_t bytes, const CutText& cut) {
  const Bytes all = file_->bytes();
  const std::string_view rest(reinterpret_cast<const char*>(all.data()) + at_, all.size() - at_);
  std::size_t end = 0;
  for (std::size_t seen = bytes; end == 0; seen *= 2) {
    end = seen >= rest.size() ? rest.size() : cut(rest.substr(0, seen));
    if (seen >= rest.size()) break;
    if (end == 0) RETURN_IF_ERROR(TooLong(seen));
  }
  at_ += end;
  return TextPart{.text = rest.substr(0, end), .of = file_};
}

absl::StatusOr<TextPart> TextParts::NextOfCompressed(std::size_t bytes, const CutText& cut) {
  std::size_t end = 0;
  for (std::size_t seen = bytes; end == 0; seen *= 2) {
    while (rest_.size() < seen && failed_.ok() && !decompressor_->ended())
      failed_ = decompressor_->AppendTo(&rest_);
    if (decompressor_->ended()) break;
    end = cut(rest_);
    if (end == 0) RETURN_IF_ERROR(failed_);
    if (end == 0) RETURN_IF_ERROR(TooLong(rest_.size()));
  }
  if (end == 0 && decompressor_->ended()) end = rest_.size();
  std::string behind = rest_.substr(end);
  rest_.resize(end);
  const auto text = std::make_shared<const std::string>(std::move(rest_));
  rest_ = std::move(behind);
  return TextPart{.text = *text, .of = text};
}

}  // namespace engine::data

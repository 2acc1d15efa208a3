#include "engine/data/token_bytes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/fingerprint.h"

namespace engine::data {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;      // of an object
constexpr std::int64_t kPieceOfAFile = std::int64_t{128} << 10;  // the system reads so much at once
constexpr std::int64_t kPiecesAhead = 8;

// Calls visit(offset, bytes) for the pieces of [begin, end), one behind the other, with start(offset, bytes) called for each before,
// some pieces ahead.
template <typename Start, typename Piece>
absl::Status InPieces(std::int64_t begin, std::int64_t end, std::int64_t piece, const Start& start,
                      const Piece& visit) {
  for (std::int64_t at = begin, started = begin; at < end; at += piece) {
    for (; started < end && started < at + kPiecesAhead * piece; started += piece)
      start(started, std::min(piece, end - started));
    RETURN_IF_ERROR(visit(at, std::min(piece, end - at)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenBytes> TokenBytes::Open(const std::string& name) {
  TokenBytes bytes;
  if (storage::IsUrl(name)) {
    ASSIGN_OR_RETURN(std::shared_ptr<const storage::Object> object, storage::Open(name));
    bytes.remote_.emplace(std::move(object));
  } else {
    ASSIGN_OR_RETURN(bytes.file_, MappedFile::Open(name, Access::kRandom));
  }
  return bytes;
}

std::int64_t TokenBytes::size() const {
  return remote_ ? remote_->object().size() : static_cast<std::int64_t>(file_->bytes().size());
}

absl::Status TokenBytes::Visit(std::int64_t offset, std::int64_t bytes,
                               absl::FunctionRef<void(std::span<const std::byte>)> visit) const {
  if (!remote_) {
    const auto mapped = [&](std::int64_t at, std::int64_t some) {
      return file_->bytes().subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(some));
    };
    return InPieces(
        offset, offset + bytes, kPieceOfAFile,
        [&](std::int64_t at, std::int64_t some) { StartReading(mapped(at, some)); },
        [&](std::int64_t at, std::int64_t some) {
          visit(mapped(at, some));
          return absl::OkStatus();
        });
  }
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
  return InPieces(
      offset, offset + bytes, kPieceBytes,
      [&](std::int64_t at, std::int64_t some) { remote_->Prefetch(some, at); },
      [&](std::int64_t at, std::int64_t some) -> absl::Status {
        RETURN_IF_ERROR(remote_->Read(piece.data(), some, at));
        visit(std::span(piece).first(static_cast<std::size_t>(some)));
        return absl::OkStatus();
      });
}

void TokenBytes::Prefetch(std::int64_t offset, std::int64_t bytes, storage::When when) const {
  if (remote_) remote_->Prefetch(bytes, offset, when);
}

std::string TokenBytes::Fingerprint(std::size_t blocks) const {
  if (!remote_) return FingerprintOfBlocks(file_->bytes(), blocks);
  return fmt::format("{} bytes, version {}", size(), Shown(remote_->object().version()));
}

}  // namespace engine::data

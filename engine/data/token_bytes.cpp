#include "engine/data/token_bytes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/fingerprint.h"

namespace engine::data {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kPiecesAhead = 8;

}  // namespace

absl::StatusOr<TokenBytes> TokenBytes::Open(const std::string& name) {
  TokenBytes bytes;
  if (storage::IsUrl(name)) {
    ASSIGN_OR_RETURN(std::shared_ptr<const storage::Object> object, storage::Open(name));
    bytes.remote_.emplace(std::move(object));
  } else {
    ASSIGN_OR_RETURN(bytes.file_, MappedFile::Open(name));
  }
  return bytes;
}

std::int64_t TokenBytes::size() const {
  return remote_ ? remote_->object().size() : static_cast<std::int64_t>(file_->bytes().size());
}

absl::Status TokenBytes::Visit(std::int64_t offset, std::int64_t bytes,
                               absl::FunctionRef<void(std::span<const std::byte>)> visit) const {
  if (!remote_) {
    visit(file_->bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes)));
    return absl::OkStatus();
  }
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
  const std::int64_t end = offset + bytes;
  for (std::int64_t asked = offset; offset < end;) {
    for (; asked < end && asked < offset + kPiecesAhead * kPieceBytes; asked += kPieceBytes)
      remote_->Prefetch(std::min(kPieceBytes, end - asked), asked);
    const std::int64_t some = std::min(kPieceBytes, end - offset);
    RETURN_IF_ERROR(remote_->Read(piece.data(), some, offset));
    visit(std::span(piece).first(static_cast<std::size_t>(some)));
    offset += some;
  }
  return absl::OkStatus();
}

void TokenBytes::Prefetch(std::int64_t offset, std::int64_t bytes, storage::When when) const {
  if (remote_) remote_->Prefetch(bytes, offset, when);
}

std::string TokenBytes::Fingerprint() const {
  if (!remote_) return FingerprintOfBlocks(file_->bytes());
  return fmt::format("{} bytes, version {}", size(), Shown(remote_->object().version()));
}

}  // namespace engine::data

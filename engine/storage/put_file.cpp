#include "engine/storage/put_file.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/storage/storage.h"

namespace engine::storage {

absl::Status PutFile(const std::string& path, const std::string& name, const PutChecks& checks) {
  constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
  ASSIGN_OR_RETURN(const File file, OpenForReading(path));
  ASSIGN_OR_RETURN(const std::int64_t bytes, file.Size());
  ASSIGN_OR_RETURN(const std::unique_ptr<Writer> writer, Create(name, bytes));
  Hasher hasher;
  std::string piece;
  for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
    if (checks.goes_on) RETURN_IF_ERROR(checks.goes_on());
    piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, bytes - at)));
    RETURN_IF_ERROR(file.ReadAt(piece.data(), static_cast<std::int64_t>(piece.size()), at));
    if (checks.may_appear) hasher.Update(piece);
    RETURN_IF_ERROR(writer->Append(piece));
  }
  if (checks.may_appear) RETURN_IF_ERROR(checks.may_appear(hasher.HexDigest()));
  return writer->Finish();
}

}  // namespace engine::storage

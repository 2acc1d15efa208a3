#include "engine/checkpoint/read.h"

#include <memory>
#include <optional>
#include <utility>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"

namespace engine::checkpoint {
namespace {

constexpr std::int64_t kMostManifestBytes = std::int64_t{1} << 30;

absl::Status CheckFileSize(const std::string& path, std::int64_t bytes) {
  ASSIGN_OR_RETURN(const File file, OpenForReading(path));
  ASSIGN_OR_RETURN(const std::int64_t actual, file.Size());
  if (actual != bytes) return DataLoss("{} has {} bytes; the manifest says {}", path, actual, bytes);
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMostManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return DataLoss("{}: {}", path, Message(manifest.status()));
  return manifest;
}

}  // namespace

absl::StatusOr<std::int64_t> ReadIteration(const std::string& folder) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return manifest.metadata.iteration;
}

absl::StatusOr<Reader> Reader::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  const std::int64_t iteration = manifest.metadata.iteration;
  if (const std::optional<std::int64_t> named = IterationOfPath(folder); named && *named != iteration) {
    return DataLoss(
        "{} is named for iteration {}, but its manifest is of iteration {}: give it the name {} back", folder,
        *named, iteration, IterationName(iteration));
  }
  Reader reader;
  reader.folder_ = folder;
  reader.SetManifest(std::move(manifest));
  for (const FileInfo& file : reader.manifest().files) {
    RETURN_IF_ERROR(CheckFileSize(JoinPath(folder, file.name), file.bytes));
  }
  return reader;
}

absl::Status Reader::Verify() const {
  for (const FileInfo& file : manifest().files) {
    const std::string path = JoinPath(folder_, file.name);
    ASSIGN_OR_RETURN(const std::string checksum, ChecksumOf(path, file.bytes));
    if (checksum != file.checksum) {
      return DataLoss("{} has checksum {}; the manifest says {}", path, checksum, file.checksum);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PieceReader::ReadAt> Reader::OpenFile(int file) const {
  ASSIGN_OR_RETURN(File opened,
                   OpenForReading(JoinPath(folder_, manifest().files[static_cast<std::size_t>(file)].name)));
  return [file = std::make_shared<File>(std::move(opened))](
             void* out, std::int64_t bytes, std::int64_t offset) { return file->ReadAt(out, bytes, offset); };
}

std::int64_t Reader::bytes() const {
  std::int64_t bytes = 0;
  for (const FileInfo& file : manifest().files) bytes += file.bytes;
  return bytes;
}

}  // namespace engine::checkpoint

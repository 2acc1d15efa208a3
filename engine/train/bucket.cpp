#include "engine/train/bucket.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/write.h"
#include "engine/storage/location.h"
#include "engine/storage/storage.h"
#include "engine/train/bucket_objects.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostManifestBytes = std::int64_t{1} << 30;
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

absl::Status FetchFile(const std::string& name, std::int64_t bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const storage::Object> object, storage::Open(name));
  if (object->size() != bytes)
    return DataLoss("{} has {} bytes; the manifest says {}", name, object->size(), bytes);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return SystemError("make the folder", fs::path(path).parent_path(), error.value());
  ASSIGN_OR_RETURN(const std::unique_ptr<storage::Writer> writer, storage::Create(path, bytes));
  std::string piece;
  for (std::int64_t at = 0; at < bytes; at += kPieceBytes) {
    piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, bytes - at)));
    RETURN_IF_ERROR(object->ReadAt(piece.data(), static_cast<std::int64_t>(piece.size()), at));
    RETURN_IF_ERROR(writer->Append(piece));
  }
  return writer->Finish();
}

// Copies a checkpoint's files to `folder`, which nobody takes for one yet.
absl::Status FetchFiles(const std::string& from, const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, storage::ReadAll(ManifestIn(from), kMostManifestBytes));
  const absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ParseManifest(text);
  if (!manifest.ok()) return WithContext(manifest.status(), ManifestIn(from));
  RETURN_IF_ERROR(ForEachFile(manifest->files.size(), [&](std::size_t i) {
    const checkpoint::FileInfo& file = manifest->files[i];
    return FetchFile(checkpoint::JoinPath(from, file.name), file.bytes,
                     checkpoint::JoinPath(folder, file.name));
  }));
  return WriteWholeFile(ManifestIn(folder), text);
}

// The newest whole one in `root`; −1: there is none.
absl::StatusOr<std::int64_t> NewestIn(const std::string& root) {
  std::vector<std::string> told_later;
  ASSIGN_OR_RETURN(const std::optional<std::string> folder, checkpoint::FindNewestWhole(root, &told_later));
  return folder ? checkpoint::IterationOfPath(*folder).value_or(-1) : -1;
}

}  // namespace

std::string NotUsed(const std::string& folder, const absl::Status& why) {
  return fmt::format("checkpoint {} is damaged and not used: {}", folder, Message(why));
}

absl::Status VerifyFolder(const std::string& folder, std::int64_t iteration) {
  ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(folder));
  const std::int64_t held = reader.metadata().iteration;
  if (held != iteration) return DataLoss("its manifest is of iteration {}", held);
  return reader.Verify();
}

absl::Status FetchCheckpoint(const std::string& prefix, std::int64_t iteration, const std::string& root) {
  const std::string writing = checkpoint::WritingPath(root, iteration);
  RETURN_IF_ERROR(RemoveTree(writing));
  std::error_code error;
  fs::create_directories(writing, error);
  if (error) return SystemError("make the folder", writing, error.value());
  ASSIGN_OR_RETURN(const File folder, OpenFolder(writing));
  RETURN_IF_ERROR(LockFolder(folder));
  RETURN_IF_ERROR(FetchFiles(checkpoint::IterationPath(prefix, iteration), writing));
  RETURN_IF_ERROR(SyncFolder(writing));
  RETURN_IF_ERROR(VerifyFolder(writing, iteration));
  return checkpoint::MoveIntoPlace(writing, root, iteration);
}

absl::StatusOr<std::string> ReadManifestText(const std::string& prefix, std::int64_t iteration) {
  return storage::ReadAll(ManifestIn(checkpoint::IterationPath(prefix, iteration)), kMostManifestBytes);
}

std::optional<Diagnostic> CheckUpload(const recipe::Recipe& recipe) {
  const std::string& upload = recipe.checkpoint.upload;
  if (upload.empty()) return std::nullopt;
  const absl::Status usable = storage::CheckUsable(upload);
  if (usable.ok()) return std::nullopt;
  Diagnostic note{.severity = Severity::kNote,
                  .span = {recipe.path, 0, 0, 1},
                  .message = Message(usable),
                  .hint = "",
                  .source_line = ""};
  if (const auto found = recipe.provenance.find("checkpoint.upload"); found != recipe.provenance.end()) {
    note.span = found->second.span;
    note.source_line = found->second.source_line;
  }
  return note;
}

absl::Status TryBucket(const std::string& prefix) {
  const std::string name = checkpoint::JoinPath(prefix, ".unfinished");
  ASSIGN_OR_RETURN(const std::unique_ptr<storage::Writer> writer, storage::Create(name));
  RETURN_IF_ERROR(writer->Finish());
  return storage::Remove(name);
}

absl::StatusOr<std::vector<std::int64_t>> ListBucket(const std::string& prefix) {
  ASSIGN_OR_RETURN(const InBucketByIteration found, ListObjects(prefix));
  return WholeOf(found);
}

absl::StatusOr<std::set<std::int64_t>> FetchFromBucket(const std::string& prefix, const std::string& root,
                                                       std::vector<std::string>* reports) {
  std::set<std::int64_t> damaged;
  ASSIGN_OR_RETURN(std::vector<std::int64_t> iterations, ListBucket(prefix));
  if (iterations.empty()) return damaged;
  ASSIGN_OR_RETURN(const std::int64_t newest, NewestIn(root));
  std::reverse(iterations.begin(), iterations.end());
  for (const std::int64_t iteration : iterations) {
    if (iteration <= newest) break;
    const absl::Status status = FetchCheckpoint(prefix, iteration, root);
    if (status.ok()) break;
    if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return status;
    damaged.insert(iteration);
    reports->push_back(NotUsed(checkpoint::IterationPath(prefix, iteration), status));
    RETURN_IF_ERROR(RemoveTree(checkpoint::WritingPath(root, iteration)));
  }
  return damaged;
}

absl::Status PruneBucket(const BucketClaim& claim, std::int64_t newest, std::int64_t keep,
                         const std::set<std::int64_t>& damaged, const std::string& root) {
  const std::string& prefix = claim.prefix();
  ASSIGN_OR_RETURN(const InBucketByIteration found, ListObjects(prefix));
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> here, checkpoint::ListIterations(root));
  for (const std::int64_t iteration : here) {
    const auto there = found.find(iteration);
    if (iteration < newest && there != found.end() && there->second.has_manifest)
      RETURN_IF_ERROR(checkpoint::DeleteCheckpoint(root, iteration));
  }
  std::int64_t kept = 0;
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    const auto& [iteration, objects] = *it;
    if (iteration > newest) continue;
    const bool stays = objects.has_manifest && (keep == 0 || kept < keep);
    kept += stays && !damaged.contains(iteration) ? 1 : 0;
    if (stays) continue;
    RETURN_IF_ERROR(claim.Check());
    RETURN_IF_ERROR(DeleteObjects(prefix, iteration, objects));
  }
  return absl::OkStatus();
}

}  // namespace engine::train

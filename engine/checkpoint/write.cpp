#include "engine/checkpoint/write.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "engine/base/file_io.h"
#include "engine/base/status.h"
#include "engine/checkpoint/coverage.h"
#include "engine/checkpoint/index_file.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"

namespace engine::checkpoint {

struct Writer::State {
  std::string root;
  std::string folder;
  Metadata metadata;
  std::vector<TensorInfo> tensors;
  File lock;
  std::mutex mutex;  // guards shards
  std::vector<ShardRecord> shards;
  bool committed = false;

  ~State() {
    if (!committed) RemoveTree(folder).IgnoreError();
  }
};

namespace {

absl::Status CreateRoot(const std::string& root) {
  std::error_code error;
  const bool created = std::filesystem::create_directories(root, error);
  if (error) return SystemError("create folder", root, error.value());
  if (!created) return absl::OkStatus();
  const std::string parent = std::filesystem::absolute(root, error).lexically_normal().parent_path();
  return SyncFolder(parent);
}

// A folder of this name is left by a process that died with our process id, or belongs to a live writer.
absl::Status CreateTemporary(const std::string& folder) {
  if (mkdir(folder.c_str(), 0777) == 0) return absl::OkStatus();
  if (errno != EEXIST) return SystemError("create folder", folder, errno);
  ASSIGN_OR_RETURN(const bool removed, RemoveUnlessLocked(folder));
  if (!removed) return FailedPrecondition("{} is being written by another writer", folder);
  if (mkdir(folder.c_str(), 0777) == 0) return absl::OkStatus();
  return SystemError("create folder", folder, errno);
}

Manifest Assemble(const Metadata& metadata, const std::vector<TensorInfo>& tensors,
                  std::vector<ShardRecord> shards) {
  std::sort(shards.begin(), shards.end(),
            [](const ShardRecord& a, const ShardRecord& b) { return a.file.name < b.file.name; });
  Manifest manifest{metadata, {}, tensors, {}};
  manifest.pieces.resize(tensors.size());
  for (ShardRecord& shard : shards) {
    const int file = static_cast<int>(manifest.files.size());
    manifest.files.push_back(std::move(shard.file));
    for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
      Piece& piece = manifest.pieces[shard.tensors[i]].emplace_back(std::move(shard.pieces[i]));
      piece.file = file;
    }
  }
  return manifest;
}

absl::Status CheckManifestCoverage(const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    std::vector<Box> boxes;
    for (const Piece& piece : manifest.pieces[i]) boxes.push_back(piece.box);
    RETURN_IF_ERROR(CheckCoverage(manifest.tensors[i].name, manifest.tensors[i].shape, boxes));
  }
  return absl::OkStatus();
}

// Keeps, under another name, a folder that has this checkpoint's name but holds another iteration: somebody
// has renamed or copied it.
absl::Status SetOtherAside(const std::string& root, std::int64_t iteration) {
  const std::string place = IterationPath(root, iteration);
  const absl::StatusOr<std::int64_t> held = ReadIteration(place);
  if (!held.ok() || *held == iteration) return absl::OkStatus();
  std::error_code error;
  int n = 1;
  while (std::filesystem::exists(std::filesystem::symlink_status(OtherPath(root, iteration, n), error))) ++n;
  return Rename(place, OtherPath(root, iteration, n));
}

}  // namespace

std::int64_t CheckpointRoom(const std::vector<TensorInfo>& tensors, std::int64_t pieces,
                            std::int64_t shards) {
  constexpr std::int64_t kManifestBytes = 128 << 10;  // with the recipe, without tensors
  constexpr std::int64_t kEntryBytes = 1 << 10;       // there, of a tensor or a piece
  const auto count = static_cast<std::int64_t>(tensors.size());
  std::int64_t bytes = ShardRoom(0, pieces) + ShardRoom(0, 0) * (shards - 1) + IndexRoom(count, pieces) +
                       kManifestBytes + kEntryBytes * (count + pieces);
  for (const TensorInfo& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

absl::Status MoveIntoPlace(const std::string& folder, const std::string& root, std::int64_t iteration) {
  const std::string place = IterationPath(root, iteration);
  RETURN_IF_ERROR(SetOtherAside(root, iteration));
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(place, error))) {
    RETURN_IF_ERROR(Rename(folder, place));
    return SyncFolder(root);
  }
  if (renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0) {
    RETURN_IF_ERROR(SyncFolder(root));
    return RemoveTree(folder);
  }
  if (errno != EINVAL && errno != ENOSYS) return SystemError("exchange " + folder + " with", place, errno);
  const std::string old = ReplacedPath(root, iteration);
  RETURN_IF_ERROR(Rename(place, old));
  RETURN_IF_ERROR(Rename(folder, place));
  RETURN_IF_ERROR(SyncFolder(root));
  return RemoveTree(old);
}

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

const std::string& Writer::folder() const { return state_->folder; }

absl::StatusOr<Writer> Writer::Begin(const std::string& root, Metadata metadata,
                                     std::vector<TensorInfo> tensors) {
  RETURN_IF_ERROR(ValidateMetadata(metadata));
  RETURN_IF_ERROR(ValidateTensors(tensors));
  RETURN_IF_ERROR(CreateRoot(root));
  const std::string folder = WritingPath(root, metadata.iteration);
  RETURN_IF_ERROR(CreateTemporary(folder));
  auto state = std::make_unique<State>();
  state->root = root;
  state->folder = folder;
  state->metadata = std::move(metadata);
  state->tensors = std::move(tensors);
  ASSIGN_OR_RETURN(state->lock, OpenFolder(folder));
  RETURN_IF_ERROR(LockFolder(state->lock));
  return Writer(std::move(state));
}

absl::Status Writer::WriteShard(int rank, const std::vector<PieceToWrite>& pieces) {
  ASSIGN_OR_RETURN(ShardRecord record, WriteShardFile(state_->folder, rank, state_->tensors, pieces));
  return AddShard(std::move(record));
}

absl::Status Writer::AddShard(ShardRecord record) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  for (const ShardRecord& shard : state_->shards) {
    if (shard.file.name == record.file.name)
      return FailedPrecondition("{} is written twice", record.file.name);
  }
  state_->shards.push_back(std::move(record));
  return absl::OkStatus();
}

absl::Status Writer::Commit() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->committed) return FailedPrecondition("{} is committed already", state_->folder);
  Manifest manifest = Assemble(state_->metadata, state_->tensors, state_->shards);
  RETURN_IF_ERROR(CheckManifestCoverage(manifest));
  ASSIGN_OR_RETURN(FileInfo index, WriteIndexFile(state_->folder, manifest));
  manifest.files.push_back(std::move(index));
  ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
  RETURN_IF_ERROR(WriteWholeFile(JoinPath(state_->folder, kManifestName), text));
  RETURN_IF_ERROR(SyncFolder(state_->folder));
  RETURN_IF_ERROR(MoveIntoPlace(state_->folder, state_->root, state_->metadata.iteration));
  state_->committed = true;
  return absl::OkStatus();
}

}  // namespace engine::checkpoint

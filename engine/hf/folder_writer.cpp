#include "engine/hf/folder_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/file_io.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"

namespace engine::hf {
namespace {

constexpr std::string_view kWholeFile = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kStagingPrefix = ".writing-";
constexpr std::int64_t kMostCopiedBytes = std::int64_t{1} << 30;

std::string ShardName(std::size_t index, std::size_t shards) {
  if (shards == 1) return std::string(kWholeFile);
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards);
}

// Whether a file has the name of one of a model's shards, model-#####-of-#####.safetensors.
bool IsShardName(std::string_view name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return std::equal(name.begin(), name.end(), kPattern.begin(), kPattern.end(),
                    [](char c, char p) { return p == '#' ? c >= '0' && c <= '9' : c == p; });
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return SystemError("list", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return SystemError("remove", path, errno);
}

}  // namespace

struct FolderWriter::State {
  std::string path, staging;
  File lock;            // of the staging folder: others see that its writer lives
  bool is_new = false;  // the folder was made here
  bool has_weights = false;
  std::set<std::string> names;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (staging.empty()) return;
    std::error_code error;  // there is nobody to tell
    std::filesystem::remove_all(staging, error);
    if (is_new) std::filesystem::remove(path, error);  // if it is empty
  }

  absl::Status Take(const std::string& name) {
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) {
      return InvalidArgument("\"{}\" is no name of a file in a model's folder", Shown(name));
    }
    if (!names.insert(name).second) return InvalidArgument("{} is written twice", Shown(name));
    return absl::OkStatus();
  }
  std::string Staged(const std::string& name) const { return fmt::format("{}/{}", staging, name); }
  std::string Final(const std::string& name) const { return fmt::format("{}/{}", path, name); }
};

absl::StatusOr<std::int64_t> ParseShardBytes(std::string_view text) {
  const std::optional<std::int64_t> bytes = ParseBytes(text);
  if (bytes.has_value() && *bytes > 0) return *bytes;
  return InvalidArgument(
      "\"{}\" is no size of a shard: a number above 0 and KB, MB, GB, KiB, MiB or GiB, as 50GB", Shown(text));
}

std::vector<std::vector<int>> ShardsOf(const std::vector<TensorDeclaration>& tensors,
                                       std::int64_t most_bytes) {
  std::vector<std::vector<int>> shards;
  std::vector<int> shard;
  std::int64_t used = 0;
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    const std::int64_t bytes = tensors[static_cast<std::size_t>(i)].bytes();
    if (bytes > most_bytes) {
      shards.push_back({i});
      continue;
    }
    if (bytes > most_bytes - used) {
      shards.push_back(std::exchange(shard, {}));
      used = 0;
    }
    shard.push_back(i);
    used += bytes;
  }
  if (!shard.empty() || shards.empty()) shards.push_back(shard);
  return shards;
}

absl::StatusOr<FolderWriter> FolderWriter::Create(const std::string& path) {
  auto state = std::make_shared<State>();
  state->path = path;
  while (state->path.size() > 1 && state->path.back() == '/') state->path.pop_back();
  std::error_code error;
  state->is_new = std::filesystem::create_directories(state->path, error);
  if (error) return SystemError("make the folder", ShownPath(path), error.value());
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path));
  for (const std::string& name : names) {
    if (name.starts_with(kStagingPrefix)) RETURN_IF_ERROR(RemoveUnlessLocked(state->Final(name)).status());
  }
  std::string staging = state->Final(fmt::format("{}XXXXXX", kStagingPrefix));
  if (mkdtemp(staging.data()) == nullptr) return SystemError("make a folder in", ShownPath(path), errno);
  state->staging = staging;
  ASSIGN_OR_RETURN(state->lock, OpenFolder(staging));
  RETURN_IF_ERROR(LockFolder(state->lock));
  return FolderWriter(std::move(state));
}

absl::Status FolderWriter::AddText(const std::string& name, std::string_view text) {
  RETURN_IF_ERROR(state_->Take(name));
  return WriteWholeFile(state_->Staged(name), text);
}

absl::Status FolderWriter::AddCopy(const std::string& name, const std::string& from) {
  ASSIGN_OR_RETURN(const std::string content, ReadRegular(from, kMostCopiedBytes));
  return AddText(name, content);
}

absl::Status FolderWriter::AddWeights(const std::vector<TensorDeclaration>& tensors,
                                      std::int64_t most_shard_bytes, const FillRows& fill) {
  const std::vector<std::vector<int>> shards = ShardsOf(tensors, most_shard_bytes);
  nlohmann::json weight_map = nlohmann::json::object();
  std::int64_t bytes = 0, elements = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardName(i, shards.size());
    RETURN_IF_ERROR(state_->Take(name));
    std::vector<TensorDeclaration> shard;
    for (const int index : shards[i]) {
      const TensorDeclaration& tensor = shard.emplace_back(tensors[static_cast<std::size_t>(index)]);
      if (weight_map.contains(tensor.name))
        return InvalidArgument("tensor \"{}\" is there twice", Shown(tensor.name));
      weight_map[tensor.name] = name;
      bytes += tensor.bytes();
      elements += tensor.shape.elements();
    }
    RETURN_IF_ERROR(WriteSafetensors(state_->Staged(name), std::move(shard), kPtMetadata, fill));
  }
  state_->has_weights = true;
  if (shards.size() == 1) return absl::OkStatus();
  const nlohmann::json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                                {"weight_map", std::move(weight_map)}};
  // Names were seen to be UTF-8 by each file's writer.
  return AddText(std::string(kIndexName), index.dump(2, ' ', /*ensure_ascii=*/true) + "\n");
}

absl::Status FolderWriter::Finish() {
  State& state = *state_;
  for (const std::string& name : state.names) RETURN_IF_ERROR(CheckRegularOrAbsent(state.Final(name)));
  const std::string index(kIndexName);
  if (state.has_weights) RETURN_IF_ERROR(RemoveFile(state.Final(index)));
  for (const std::string& name : state.names) {
    if (name != index) RETURN_IF_ERROR(Rename(state.Staged(name), state.Final(name)));
  }
  if (state.names.contains(index)) {
    RETURN_IF_ERROR(SyncFolder(state.path));
    RETURN_IF_ERROR(Rename(state.Staged(index), state.Final(index)));
  }
  state.is_new = false;
  if (state.has_weights) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(state.path));
    for (const std::string& name : names) {
      if (state.names.contains(name) || (name != kWholeFile && !IsShardName(name))) continue;
      RETURN_IF_ERROR(RemoveFile(state.Final(name)));
    }
  }
  return SyncFolder(state.path);
}

}  // namespace engine::hf

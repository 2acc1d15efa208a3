#include "engine/train/bucket_copy.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "engine/base/cache_folder.h"
#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/storage/storage.h"
#include "engine/train/bucket.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> CopiesFolder() {
  const std::string cache = CacheFolder();
  if (cache.empty())
    return FailedPrecondition("there is no folder for copies: set ENGINE_CACHE, XDG_CACHE_HOME or HOME");
  return (fs::path(cache) / "checkpoints").string();
}

// What cannot be removed stays.
void RemoveUnused(const std::string& copies, const std::string& newest) {
  constexpr std::chrono::hours kUnused{24};
  std::error_code error;
  for (fs::directory_iterator it(copies, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code of_one;
    const fs::file_time_type used = it->last_write_time(of_one);
    if (of_one || it->path() == newest || fs::file_time_type::clock::now() - used < kUnused) continue;
    fs::remove_all(it->path(), of_one);
  }
}

// `anew`: also where there is one already.
absl::StatusOr<std::string> CopyOf(const std::string& prefix, std::int64_t iteration, bool anew) {
  ASSIGN_OR_RETURN(const std::string text, ReadManifestText(prefix, iteration));
  ASSIGN_OR_RETURN(const std::string copies, CopiesFolder());
  const std::string root = (fs::path(copies) / HashHex(fmt::format("{}\n{}", prefix, text))).string();
  const std::string folder = checkpoint::IterationPath(root, iteration);
  std::error_code error;
  if (!anew && VerifyFolder(folder, iteration).ok()) {
    fs::last_write_time(root, fs::file_time_type::clock::now(), error);
    return folder;
  }
  RETURN_IF_ERROR(FetchCheckpoint(prefix, iteration, root));
  RemoveUnused(copies, root);
  return folder;
}

}  // namespace

absl::StatusOr<InBucketName> ParseBucketName(const std::string& name) {
  ASSIGN_OR_RETURN(const storage::Location location, storage::Locate(name));
  if (location.kind != storage::Kind::kS3)
    return InvalidArgument("{} is no place of checkpoints: a folder is one, or s3://BUCKET/KEY",
                           ShownPath(name));
  std::string_view rest = name;
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t slash = rest.rfind('/');
  InBucketName found;
  if (const std::optional<std::int64_t> iteration = checkpoint::ParseIterationName(rest.substr(slash + 1))) {
    found.iteration = *iteration;
    rest = rest.substr(0, slash);
  }
  found.prefix = std::string(rest);
  RETURN_IF_ERROR(storage::CheckPrefix(found.prefix));
  RETURN_IF_ERROR(storage::CheckUsable(found.prefix));
  return found;
}

absl::StatusOr<checkpoint::Manifest> ReadManifestInBucket(const std::string& prefix, std::int64_t iteration) {
  ASSIGN_OR_RETURN(const std::string text, ReadManifestText(prefix, iteration));
  const std::string folder = checkpoint::IterationPath(prefix, iteration);
  absl::StatusOr<checkpoint::Manifest> manifest = checkpoint::ParseManifest(text);
  if (!manifest.ok()) return WithContext(manifest.status(), folder);
  if (manifest->metadata.iteration != iteration)
    return DataLoss("{}: its manifest is of iteration {}", folder, manifest->metadata.iteration);
  ASSIGN_OR_RETURN(const std::vector<storage::Entry> entries,
                   storage::List(checkpoint::JoinPath(folder, "")));
  std::map<std::string, std::int64_t> bytes;
  for (const storage::Entry& entry : entries) bytes[entry.name] = entry.bytes;
  for (const checkpoint::FileInfo& file : manifest->files) {
    const auto found = bytes.find(checkpoint::JoinPath(folder, file.name));
    if (found == bytes.end()) return DataLoss("{}: {} is not there", folder, file.name);
    if (found->second != file.bytes)
      return DataLoss("{}: {} has {} bytes; the manifest says {}", folder, file.name, found->second,
                      file.bytes);
  }
  return manifest;
}

absl::Status VerifyInBucket(const std::string& prefix, std::int64_t iteration) {
  return CopyOf(prefix, iteration, /*anew=*/true).status();
}

absl::StatusOr<std::string> LocalCheckpoint(const std::string& name, std::vector<std::string>* reports) {
  if (!storage::IsUrl(name)) return name;
  ASSIGN_OR_RETURN(const InBucketName named, ParseBucketName(name));
  std::vector<std::int64_t> iterations = {named.iteration};
  if (named.iteration < 0) {
    ASSIGN_OR_RETURN(iterations, ListBucket(named.prefix));
    std::reverse(iterations.begin(), iterations.end());
  }
  if (iterations.empty()) return NotFound("{} holds no checkpoint", ShownPath(name));
  for (const std::int64_t iteration : iterations) {
    const std::string there = checkpoint::IterationPath(named.prefix, iteration);
    absl::StatusOr<std::string> copy = CopyOf(named.prefix, iteration, /*anew=*/false);
    if (copy.ok()) {
      reports->push_back(fmt::format("{} is read from its copy, {}", there, *copy));
      return copy;
    }
    const bool is_damaged = absl::IsDataLoss(copy.status()) || absl::IsNotFound(copy.status());
    if (named.iteration >= 0 || !is_damaged) return copy;
    reports->push_back(
        fmt::format("checkpoint {} is damaged and not used: {}", there, Message(copy.status())));
  }
  return DataLoss("{} holds no whole checkpoint: {}", ShownPath(name), reports->back());
}

}  // namespace engine::train

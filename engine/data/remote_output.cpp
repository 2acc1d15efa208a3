#include "engine/data/remote_output.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/cache_folder.h"
#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/chat_build.h"
#include "engine/data/indexed_format.h"
#include "engine/storage/put_file.h"
#include "engine/storage/storage.h"

namespace engine::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostManifestBytes = std::int64_t{1} << 30;

absl::StatusOr<std::string> LocalFolder(const std::string& output_prefix) {
  const std::string cache = CacheFolder();
  if (cache.empty()) {
    return FailedPrecondition(
        "{} is made on this machine first, and there is no folder for it: set ENGINE_CACHE, XDG_CACHE_HOME "
        "or HOME",
        ShownPath(output_prefix));
  }
  const std::string folder = (fs::path(cache) / "builds" / HashHex(output_prefix)).string();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return SystemError("make the folder", folder, error.value());
  return folder;
}

absl::Status TryToWrite(const std::string& output_prefix) {
  const std::string name = output_prefix + ".unfinished";
  ASSIGN_OR_RETURN(const std::unique_ptr<storage::Writer> writer, storage::Create(name));
  RETURN_IF_ERROR(writer->Finish());
  return storage::Remove(name);
}

absl::Status PutManifest(const std::string& path, const std::string& name, const std::string& local,
                         const std::string& output_prefix) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMostManifestBytes));
  nlohmann::ordered_json manifest = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (manifest.is_discarded() || !manifest.contains("datasets")) return Internal("{} is no manifest", path);
  for (nlohmann::ordered_json& dataset : manifest["datasets"]) {
    for (const char* key : {"prefix", "loss_mask"}) {
      if (dataset.contains(key))
        dataset[key] = PublishedName(dataset[key].get<std::string>(), local, output_prefix);
    }
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<storage::Writer> writer, storage::Create(name));
  RETURN_IF_ERROR(
      writer->Append(manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  return writer->Finish();
}

// Files with a larger number are put into the bucket later, and removed from it earlier.
int PlaceInOrder(const std::string& name) {
  if (!name.ends_with(".idx")) return 0;
  return name.ends_with(LossMaskPrefix("") + ".idx") ? 1 : 2;
}

absl::Status Publish(const std::string& local, const std::string& output_prefix) {
  ASSIGN_OR_RETURN(std::vector<storage::Entry> files, storage::List(local));
  std::stable_sort(files.begin(), files.end(), [&](const storage::Entry& a, const storage::Entry& b) {
    return PlaceInOrder(a.name) < PlaceInOrder(b.name);
  });
  const auto name_of = [&](const storage::Entry& file) {
    return PublishedName(file.name, local, output_prefix);
  };
  // An older index would be one of another .bin.
  for (auto file = files.rbegin(); file != files.rend(); ++file)
    if (PlaceInOrder(file->name) > 0) RETURN_IF_ERROR(storage::Remove(name_of(*file)));
  for (const storage::Entry& file : files) {
    RETURN_IF_ERROR(file.name.ends_with(".json") ? PutManifest(file.name, name_of(file), local, output_prefix)
                                                 : storage::PutFile(file.name, name_of(file)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string PublishedName(const std::string& prefix, const std::string& local,
                          const std::string& output_prefix) {
  return prefix.starts_with(local) ? output_prefix + prefix.substr(local.size()) : prefix;
}

absl::Status MakeAt(const std::string& output_prefix,
                    const std::function<absl::Status(const std::string& prefix)>& make) {
  if (!storage::IsUrl(output_prefix)) return make(output_prefix);
  RETURN_IF_ERROR(storage::CheckPrefix(output_prefix));
  RETURN_IF_ERROR(storage::CheckUsable(output_prefix));
  RETURN_IF_ERROR(TryToWrite(output_prefix));
  ASSIGN_OR_RETURN(const std::string folder, LocalFolder(output_prefix));
  const std::string local = folder + "/made";
  if (absl::Status status = make(local); !status.ok()) {
    std::error_code not_empty;  // what is done stays there
    fs::remove(folder, not_empty);
    return status;
  }
  if (absl::Status status = Publish(local, output_prefix); !status.ok())
    return absl::Status(status.code(), fmt::format("{}; what was made is in {}", Message(status), folder));
  return RemoveTree(folder);
}

}  // namespace engine::data

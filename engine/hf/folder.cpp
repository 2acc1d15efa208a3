#include "engine/hf/folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/hf/json_events.h"

namespace engine::hf {
namespace {

constexpr std::string_view kOneFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kExtension = ".safetensors";
constexpr std::int64_t kMostIndexBytes = 256'000'000;
constexpr std::size_t kMostNamedFiles = 5;  // in an error

using WeightMap = std::map<std::string, std::string>;  // tensor → file

std::string PathOf(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

// Whether something has that name, be it a link to nothing.
bool IsThere(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0;
}

// What is wrong with a file's name in an index; empty if nothing is.
std::string_view FaultOf(std::string_view file) {
  if (file.empty()) return "is empty";
  if (file.find('/') != std::string_view::npos || file.find('\\') != std::string_view::npos)
    return "leaves the folder";
  if (file.find('\0') != std::string_view::npos) return "has a zero byte";
  if (file.ends_with(".bin") || file.ends_with(".pt")) return "is a pickle's";
  if (!file.ends_with(kExtension) || file == kExtension) return "does not end with .safetensors";
  return "";
}

// The events of an index. Values beside weight_map are for people and not looked at.
class IndexEvents : public JsonEvents {
 public:
  WeightMap weight_map;
  bool has_weight_map = false;

  bool null() override { return skipped_ || JsonEvents::null(); }
  bool boolean(bool value) override { return skipped_ || JsonEvents::boolean(value); }
  bool number_integer(std::int64_t value) override { return skipped_ || JsonEvents::number_integer(value); }
  bool number_unsigned(std::uint64_t value) override {
    return skipped_ || JsonEvents::number_unsigned(value);
  }
  bool number_float(double value, const std::string& text) override {
    return skipped_ || JsonEvents::number_float(value, text);
  }
  bool start_array(std::size_t size) override { return skipped_ ? Deeper() : JsonEvents::start_array(size); }
  bool end_array() override { return Higher(); }
  bool end_object() override { return Higher(); }
  bool start_object(std::size_t size) override;
  bool key(std::string& name) override;
  bool string(std::string& value) override;

 protected:
  std::string Expected() const override {
    if (depth_ == 0) return "the index must be an object";
    if (depth_ == 1) return "weight_map must be an object of tensors' names and files";
    return fmt::format("the file of tensor \"{}\" in weight_map must be a name", Shown(tensor_));
  }

 private:
  static constexpr int kMostDepth = 16;
  bool Deeper() { return ++depth_ <= kMostDepth || Fail("nested deeper than {} levels", kMostDepth); }
  bool Higher() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  bool skipped_ = false;  // what is at hand belongs to another key than weight_map
  std::set<std::string> keys_;
  std::string tensor_;
};

bool IndexEvents::start_object(std::size_t size) {
  if (depth_ == 0 || skipped_ || depth_ == 1) return Deeper();
  return JsonEvents::start_object(size);
}

bool IndexEvents::key(std::string& name) {
  if (depth_ == 1) {
    if (!keys_.insert(name).second) return Fail("\"{}\" is there twice", Shown(name));
    skipped_ = name != "weight_map";
    has_weight_map = has_weight_map || !skipped_;
  } else if (!skipped_) {
    if (weight_map.contains(name)) return Fail("tensor \"{}\" is in weight_map twice", Shown(name));
    if (static_cast<std::int64_t>(weight_map.size()) >= kMostTensors)
      return Fail("more than {} tensors", kMostTensors);
    tensor_ = name;
  }
  return true;
}

bool IndexEvents::string(std::string& value) {
  if (skipped_) return true;
  if (depth_ != 2) return JsonEvents::string(value);
  if (const std::string_view fault = FaultOf(value); !fault.empty()) {
    return Fail(
        "the file of tensor \"{}\" is \"{}\", which {}: it must be the name of a .safetensors file in this "
        "folder",
        Shown(tensor_), Shown(value), fault);
  }
  weight_map.emplace(tensor_, std::move(value));
  return true;
}

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, kMostIndexBytes));
  IndexEvents events;
  RETURN_IF_ERROR(ReadJson(text, ShownPath(path), &events));
  if (!events.has_weight_map)
    return InvalidArgument("{}: there is no weight_map: {{tensor: file}}", ShownPath(path));
  if (events.weight_map.empty()) return InvalidArgument("{}: weight_map is empty", ShownPath(path));
  return std::move(events.weight_map);
}

absl::Status CheckFolder(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return SystemError("open", ShownPath(path), errno);
  if (S_ISDIR(info.st_mode)) return absl::OkStatus();
  return InvalidArgument("{} is no folder: a model is a folder with config.json and {}, or shards and {}",
                         ShownPath(path), kOneFile, kIndexFile);
}

// Of a folder without weights that are read: what it has instead.
absl::Status NoWeights(const std::string& path) {
  std::vector<std::string> pickles, others;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("pytorch_model") && (name.ends_with(".bin") || name.ends_with(".bin.index.json"))) {
      pickles.push_back(name);
    } else if (name.ends_with(kExtension)) {
      others.push_back(Shown(name));
    }
  }
  if (error) return SystemError("list", ShownPath(path), error.value());
  std::string why = fmt::format("{} has neither {} nor {}", ShownPath(path), kOneFile, kIndexFile);
  if (!pickles.empty()) {
    return NotFound(
        "{}. Its {} is a pickle, which is a program and is never read: save the model again where it is "
        "trusted, with "
        "save_pretrained(…, safe_serialization=True) of transformers",
        why, *std::min_element(pickles.begin(), pickles.end()));
  }
  if (others.empty()) return absl::NotFoundError(why);
  std::sort(others.begin(), others.end());
  const std::size_t more = others.size() - std::min(others.size(), kMostNamedFiles);
  others.resize(others.size() - more);
  return NotFound(
      "{}; it has {}{}: the file with the model's weights must be called {}, and shards need an index", why,
      fmt::join(others, ", "), more == 0 ? "" : fmt::format(" and {} more", more), kOneFile);
}

absl::StatusOr<SafetensorsFile> OpenFile(const std::string& path) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  const auto format = file.metadata().find("format");
  if (format != file.metadata().end() && (format->second == "tf" || format->second == "flax")) {
    return InvalidArgument(
        "{}: its metadata say format \"{}\", whose matrices are laid out in another way: \"pt\" is read",
        ShownPath(path), format->second);
  }
  return file;
}

}  // namespace

absl::StatusOr<Folder> Folder::Open(const std::string& path) {
  RETURN_IF_ERROR(CheckFolder(path));
  const std::string one_path = PathOf(path, kOneFile), index_path = PathOf(path, kIndexFile);
  const bool has_index = IsThere(index_path);
  if (!has_index && !IsThere(one_path)) return NoWeights(path);

  WeightMap weight_map;
  std::set<std::string> names = {std::string(kOneFile)};
  if (has_index) {
    ASSIGN_OR_RETURN(weight_map, ReadIndex(index_path));
    names.clear();
    for (const auto& [tensor, name] : weight_map) names.insert(name);
    if (IsThere(one_path) && !names.contains(std::string(kOneFile))) {
      return InvalidArgument(
          "{} has {} and {}, which does not name it: which of them is the model can't be told; remove one",
          ShownPath(path), kOneFile, kIndexFile);
    }
  }

  Folder folder;
  folder.path_ = path;
  for (const std::string& name : names) {
    const absl::Status status = folder.Add(name);
    if (status.ok()) continue;
    if (!has_index) return status;
    return absl::Status(status.code(), fmt::format("{} (named in {})", Message(status), kIndexFile));
  }
  if (!has_index) return folder;
  for (const auto& [tensor, name] : weight_map) {
    const std::optional<Entry> entry = folder.Find(tensor);
    if (entry.has_value() && entry->file->path() == PathOf(path, name)) continue;
    return InvalidArgument("{}: tensor \"{}\" should be in {}, which has no such tensor{}",
                           ShownPath(index_path), Shown(tensor), Shown(name),
                           entry.has_value() ? ": it is in " + ShownPath(entry->file->path()) : "");
  }
  for (const auto& [tensor, entry] : folder.index_) {
    if (weight_map.contains(tensor)) continue;
    return InvalidArgument("{}: tensor \"{}\" is not in the weight_map of {}", ShownPath(entry.file->path()),
                           Shown(tensor), kIndexFile);
  }
  return folder;
}

absl::Status Folder::Add(const std::string& name) {
  ASSIGN_OR_RETURN(SafetensorsFile opened, OpenFile(PathOf(path_, name)));
  const auto& file = files_.emplace_back(std::make_shared<const SafetensorsFile>(std::move(opened)));
  for (const StoredTensor& tensor : file->tensors()) {
    const auto [entry, is_new] = index_.emplace(tensor.name, Entry{file.get(), &tensor});
    if (is_new) continue;
    return InvalidArgument("tensor \"{}\" is in {} and in {}: it must be in one file", Shown(tensor.name),
                           ShownPath(entry->second.file->path()), ShownPath(file->path()));
  }
  return absl::OkStatus();
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> names;
  names.reserve(index_.size());
  for (const auto& [name, entry] : index_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<Folder::Entry> Folder::Find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

std::int64_t Folder::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, entry] : index_) bytes += entry.tensor->end - entry.tensor->begin;
  return bytes;
}

}  // namespace engine::hf

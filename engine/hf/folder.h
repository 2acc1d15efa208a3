// The weights of a Hugging Face model: a folder with model.safetensors, or with shards and the index of them.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/hf/safetensors.h"

namespace engine::hf {

class Folder {
 public:
  // Errors, InvalidArgument or NotFound, each with the file and what would be right: no weights (of pytorch_model.bin it says
  // that pickles are never read); an index that names a file outside of the folder, one that is not there, or a tensor that
  // its file has not; a tensor in two files; a file that safetensors' format does not allow.
  static absl::StatusOr<Folder> Open(const std::string& path);

  struct Entry {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  // of all tensors, in the order of bytes
  // Nothing where there is no tensor of that name.
  std::optional<Entry> Find(std::string_view name) const;
  std::int64_t bytes() const;  // of all tensors

 private:
  std::string path_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, Entry> index_;
};

}  // namespace engine::hf

// The weights of a Hugging Face model: a folder with model.safetensors, or with shards and the index of them,
// model.safetensors.index.json: {"metadata": {…}, "weight_map": {tensor: file}}.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hf/safetensors.h"

namespace engine::hf {

class Folder {
 public:
  // Symbolic links are followed, since a cache of Hugging Face's is made of them. Errors, each with the file and what would be
  // right. NotFound: no folder, no weights (of pytorch_model.bin it says that pickles are never read), a file that the index
  // names and that is not there. InvalidArgument: an index beside a model.safetensors that it does not name; one that names
  // what is no file of this folder; a tensor that its file has not, that is in two files, or that the index does not name; a
  // file that safetensors' format does not allow; weights laid out as TensorFlow or Flax have them.
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
  absl::Status Add(const std::string& name);  // the tensors of a file of that name

  std::string path_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  absl::flat_hash_map<std::string, Entry> index_;
};

}  // namespace engine::hf

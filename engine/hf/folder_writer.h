// Writing the folder of a Hugging Face model (folder.h) so that its files appear together.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hf/safetensors_writer.h"

namespace engine::hf {

inline constexpr std::int64_t kDefaultShardBytes = 50'000'000'000;  // of `transformers` 5

// "50GB", "5MB", "1KiB": decimal and binary units. InvalidArgument where it is no size above 0.
absl::StatusOr<std::int64_t> ParseShardBytes(std::string_view text);

// Which tensors each file gets, as indices, in the order of their model: a file is full when the next tensor would make it
// larger than `most_bytes`, and a tensor that is larger gets a file by itself, before the one at hand.
std::vector<std::vector<int>> ShardsOf(const std::vector<TensorDeclaration>& tensors,
                                       std::int64_t most_bytes);

// Everything is written and synced in PATH/.writing-…, and Finish moves it: the old index goes first and the new one comes
// last, so that a crash in between leaves a folder that is refused (folder.h) rather than a mixture of two models. Shards
// and single files of weights that an earlier save has left are removed at the end. A writer that is destroyed before
// Finish leaves the folder as it was, or no folder where there was none.
class FolderWriter {
 public:
  // Makes the folder if it is not there, and takes away what dead writers left in it. Errors: the system's, with the path.
  static absl::StatusOr<FolderWriter> Create(const std::string& path);

  absl::Status AddText(const std::string& name, std::string_view text);
  // A regular file, or a link to one, as it is.
  absl::Status AddCopy(const std::string& name, const std::string& from);
  // model.safetensors; or shards model-0000i-of-0000M.safetensors and their index, if there are more bytes than
  // `most_shard_bytes`. `tensors` in the order of the model. Once a writer.
  absl::Status AddWeights(const std::vector<TensorDeclaration>& tensors, std::int64_t most_shard_bytes,
                          const FillRows& fill);
  absl::Status Finish();

 private:
  struct State;
  explicit FolderWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace engine::hf

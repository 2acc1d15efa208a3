// Reads any box of any tensor from pieces of it, wherever they lie and however they were cut.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/tensor_source.h"

namespace engine::checkpoint {

class PieceReader : public TensorSource {
 public:
  // Fills `out` with `bytes` bytes from `offset` on, of one file.
  using ReadAt = std::function<absl::Status(void* out, std::int64_t bytes, std::int64_t offset)>;

  // Fills `out`, row-major and contiguous, with the elements of `box` in the tensor's own dtype.
  absl::Status Read(const std::string& tensor, const Box& box, void* out) const override;

  const std::vector<TensorInfo>& tensors() const override { return manifest_.tensors; }
  const TensorInfo* Find(const std::string& tensor) const override;
  // The name by which messages call what is read: "checkpoint runs/a/checkpoints/iteration_0000100".
  virtual std::string Name() const = 0;

 protected:
  PieceReader() = default;
  // Once. Pieces of a tensor cover it exactly once, in order of their files.
  void SetManifest(Manifest manifest);
  const Manifest& manifest() const { return manifest_; }
  // Opens the file of that number (Manifest::files) and returns the function that reads from it.
  virtual absl::StatusOr<ReadAt> OpenFile(int file) const = 0;
  // The type of a tensor's elements in the files: its own, or bf16 or f16 of one of f32.
  virtual DType StoredAs(const TensorInfo& tensor) const { return tensor.dtype; }

 private:
  absl::Status ReadPieces(int tensor, const Box& box, DType dtype, char* out) const;

  Manifest manifest_;
  absl::flat_hash_map<std::string, int> index_;  // tensor's name → its place in manifest_.tensors
};

}  // namespace engine::checkpoint

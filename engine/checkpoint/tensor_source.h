// Weights by name, wherever they come from: a checkpoint of the engine's own, or a folder in another form.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "engine/checkpoint/box.h"
#include "engine/checkpoint/metadata.h"

namespace engine::checkpoint {

// Constant once it is there, so that many threads may read at once.
class TensorSource {
 public:
  TensorSource() = default;
  TensorSource(const TensorSource&) = default;
  TensorSource& operator=(const TensorSource&) = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;
  virtual ~TensorSource() = default;

  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // Null if there is none of that name; lives as long as the source.
  virtual const TensorInfo* Find(const std::string& tensor) const = 0;
  // Fills `out`, row-major and contiguous, with the elements of `box` in the tensor's own dtype.
  virtual absl::Status Read(const std::string& tensor, const Box& box, void* out) const = 0;
};

}  // namespace engine::checkpoint

// A model's tensors in the form of Hugging Face's, made of the engine's parameters, some rows at a time.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/tensor_source.h"
#include "engine/hf/safetensors_writer.h"
#include "engine/hf/weights.h"

namespace engine::hf {

class ExportedTensors {
 public:
  // `source` outlives this; it has each mapping's parameter in f32, with its shape. `type`: f32, bf16 or f16, which the tensors
  // get, rounded to nearest even; with `exact` a value that would be rounded is an error. InvalidArgument: parts that do not
  // make up a tensor, a parameter that the source has not or in another shape.
  static absl::StatusOr<ExportedTensors> Create(const checkpoint::TensorSource& source,
                                                std::vector<Mapping> mappings, StoredType type, bool exact);

  // In the order of the mappings.
  const std::vector<TensorDeclaration>& declarations() const { return declarations_; }
  // Rows of a declared tensor (FillRows). FailedPrecondition, with the tensor and a value of it, for one that `exact` would not
  // have rounded, and in any case for one that is larger than the type's numbers. By one thread at a time.
  absl::Status Fill(const TensorDeclaration& tensor, std::int64_t row, std::int64_t rows,
                    std::span<std::byte> out);

 private:
  // Elements [begin, end) of theirs that are in `box` of ours, to `values_`; no more of ours is read at once than about as many.
  absl::Status FillBox(const Part& part, const std::string& parameter, checkpoint::Box box,
                       std::int64_t begin, std::int64_t end);
  // That no number has become an infinity.
  absl::Status CheckRange(const std::string& name, std::span<const float> values) const;
  absl::Status CheckExact(const std::string& name, std::span<const float> values) const;

  const checkpoint::TensorSource* source_ = nullptr;
  std::vector<Mapping> mappings_;
  std::vector<TheirTensor> tensors_;
  std::vector<TensorDeclaration> declarations_;
  absl::flat_hash_map<std::string, int> index_;
  StoredType type_ = StoredType::kF32;
  bool exact_ = false;
  // Of the rows at hand, theirs and ours: used again and again, so that their pages are touched once.
  std::vector<float> values_, ours_;
  std::vector<std::uint16_t> rounded_;
};

}  // namespace engine::hf

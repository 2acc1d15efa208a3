#include "engine/hf/exported_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/half.h"
#include "engine/base/status.h"
#include "engine/hf/strided.h"

namespace engine::hf {
namespace {

using checkpoint::Box;

// The dim of ours along which a part's elements are farthest apart in theirs; -1: the part is one element.
int OuterDimOf(const Part& part) {
  int outer = -1;
  for (int dim = 0; dim < part.box.count.rank(); ++dim) {
    if (part.box.count[dim] > 1 && (outer < 0 || part.their_stride[dim] > part.their_stride[outer]))
      outer = dim;
  }
  return outer;
}

// From a part's first element of one index along `outer` to behind the last one, in theirs.
std::int64_t SpanWithin(const Part& part, int outer) {
  std::int64_t span = 1;
  for (int dim = 0; dim < part.box.count.rank(); ++dim) {
    if (dim != outer) span += (part.box.count[dim] - 1) * part.their_stride[dim];
  }
  return span;
}

// Whether 16 bits hold every value exactly (a NaN stays one); the first that they do not.
const float* FirstRounded(std::span<const float> values, StoredType type) {
  for (const float& value : values) {
    const float stored = type == StoredType::kBF16 ? FloatFromBFloat16(BFloat16FromFloat(value))
                                                   : FloatFromHalf(HalfFromFloat(value));
    if (stored != value && !std::isnan(value)) return &value;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<ExportedTensors> ExportedTensors::Create(const checkpoint::TensorSource& source,
                                                        std::vector<Mapping> mappings, StoredType type,
                                                        bool exact) {
  for (const Mapping& mapping : mappings) {
    const checkpoint::TensorInfo* info = source.Find(mapping.parameter);
    if (info == nullptr) return InvalidArgument("parameter {} is not there", mapping.parameter);
    if (info->shape != mapping.shape || info->dtype != DType::kF32) {
      return InvalidArgument("parameter {} is {} {}, not f32 {}", mapping.parameter, Name(info->dtype),
                             info->shape.ToString(), mapping.shape.ToString());
    }
  }
  ExportedTensors exported;
  ASSIGN_OR_RETURN(exported.tensors_, TheirTensors(mappings));
  exported.source_ = &source;
  exported.mappings_ = std::move(mappings);
  exported.type_ = type;
  exported.exact_ = exact;
  for (std::size_t i = 0; i < exported.tensors_.size(); ++i) {
    const TheirTensor& tensor = exported.tensors_[i];
    exported.declarations_.push_back({.name = tensor.name, .type = type, .shape = tensor.shape});
    exported.index_.emplace(tensor.name, static_cast<int>(i));
  }
  return exported;
}

absl::Status ExportedTensors::FillPart(const Part& part, const std::string& parameter, std::int64_t begin,
                                       std::int64_t end, std::vector<float>* values) const {
  Box box = part.box;
  const int outer = OuterDimOf(part);
  if (outer >= 0) {
    const std::int64_t stride = part.their_stride[outer], span = SpanWithin(part, outer);
    // Indices whose elements reach into [begin, end).
    const std::int64_t low = begin - part.their_begin - span + 1, high = end - part.their_begin;
    const std::int64_t first = low <= 0 ? 0 : (low + stride - 1) / stride;
    const std::int64_t last = high <= 0 ? 0 : std::min(part.box.count[outer], (high + stride - 1) / stride);
    if (first >= last) return absl::OkStatus();
    box.start[outer] += first;
    box.count[outer] = last - first;
  }
  std::vector<float> ours(static_cast<std::size_t>(box.count.elements()));
  RETURN_IF_ERROR(source_->Read(parameter, box, ours.data()));
  ForEachStridedRun(StridedCopyOf(box, part, box), [&](const StridedRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t at = run.from + i * run.from_step;
      if (at < begin || at >= end) continue;
      (*values)[static_cast<std::size_t>(at - begin)] =
          ours[static_cast<std::size_t>(run.to + i * run.to_step)];
    }
  });
  return absl::OkStatus();
}

absl::Status ExportedTensors::Fill(const TensorDeclaration& declared, std::int64_t row, std::int64_t rows,
                                   std::span<std::byte> out) const {
  const auto found = index_.find(declared.name);
  if (found == index_.end()) return NotFound("there is no tensor {}", declared.name);
  const TheirTensor& tensor = tensors_[static_cast<std::size_t>(found->second)];
  const std::int64_t width = tensor.shape.rank() == 0 ? 1 : tensor.shape.elements(1, tensor.shape.rank());
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  for (const auto& [mapping, part] : tensor.parts) {
    const Mapping& ours = mappings_[static_cast<std::size_t>(mapping)];
    RETURN_IF_ERROR(FillPart(ours.parts[static_cast<std::size_t>(part)], ours.parameter, row * width,
                             (row + rows) * width, &values));
  }
  if (type_ == StoredType::kF32) {
    std::memcpy(out.data(), values.data(), out.size());
    return absl::OkStatus();
  }
  if (const float* rounded = exact_ ? FirstRounded(values, type_) : nullptr; rounded != nullptr) {
    return FailedPrecondition("{} holds {}, which {} cannot say exactly", declared.name, *rounded,
                              Name(type_));
  }
  std::vector<std::uint16_t> stored(values.size());
  if (type_ == StoredType::kBF16)
    BFloat16FromFloats(values, stored.data());
  else
    HalfFromFloats(values, stored.data());
  std::memcpy(out.data(), stored.data(), out.size());
  return absl::OkStatus();
}

}  // namespace engine::hf

#include "engine/hf/exported_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/base/half.h"
#include "engine/base/status.h"
#include "engine/hf/strided.h"

namespace engine::hf {
namespace {

using checkpoint::Box;

// The dim of a box of ours along which elements are farthest apart in theirs; -1: the box is one element.
int OuterDimOf(const Box& box, const Part& part) {
  int outer = -1;
  for (int dim = 0; dim < box.count.rank(); ++dim) {
    if (box.count[dim] > 1 && (outer < 0 || part.their_stride[dim] > part.their_stride[outer])) outer = dim;
  }
  return outer;
}

// From a box's first element of one index along `outer` to behind the last one, in theirs.
std::int64_t SpanWithin(const Box& box, const Part& part, int outer) {
  std::int64_t span = 1;
  for (int dim = 0; dim < box.count.rank(); ++dim) {
    if (dim != outer) span += (box.count[dim] - 1) * part.their_stride[dim];
  }
  return span;
}

// Ours to theirs, of which `values` has elements [begin, end); the others are left out.
void CopyTile(const float* ours, const StridedTile& tile, float* values, std::int64_t begin,
              std::int64_t end) {
  std::array<float, kTileRun * kTileLines> buffer;
  const bool turned = tile.lines.count > 1;
  if (turned) {
    for (std::int64_t i = 0; i < tile.run.count; ++i) {
      for (std::int64_t line = 0; line < tile.lines.count; ++line)
        buffer[i * kTileLines + line] = ours[tile.to + i * tile.run.to_step + line * tile.lines.to_step];
    }
  }
  const std::int64_t step = tile.run.from_step;
  for (std::int64_t line = 0; line < tile.lines.count; ++line) {
    const std::int64_t theirs = tile.from + line * tile.lines.from_step;
    const std::int64_t first = theirs >= begin ? 0 : (begin - theirs + step - 1) / step;
    const std::int64_t last = theirs >= end ? 0 : std::min(tile.run.count, (end - theirs + step - 1) / step);
    const float* from = turned ? buffer.data() + line : ours + tile.to;
    const std::int64_t from_step = turned ? kTileLines : tile.run.to_step;
    if (step == 1 && from_step == 1) {
      if (first < last) std::copy(from + first, from + last, values + (theirs + first - begin));
      continue;
    }
    for (std::int64_t i = first; i < last; ++i) values[theirs + i * step - begin] = from[i * from_step];
  }
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

absl::Status ExportedTensors::FillBox(const Part& part, const std::string& parameter, Box box,
                                      std::int64_t begin, std::int64_t end) {
  const int outer = OuterDimOf(box, part);
  if (outer >= 0) {
    std::int64_t at = part.their_begin;
    for (int dim = 0; dim < box.count.rank(); ++dim)
      at += (box.start[dim] - part.box.start[dim]) * part.their_stride[dim];
    const std::int64_t stride = part.their_stride[outer], span = SpanWithin(box, part, outer);
    // Indices whose elements reach into [begin, end).
    const std::int64_t low = begin - at - span + 1, high = end - at;
    const std::int64_t first = low <= 0 ? 0 : (low + stride - 1) / stride;
    const std::int64_t last = high <= 0 ? 0 : std::min(box.count[outer], (high + stride - 1) / stride);
    if (first >= last) return absl::OkStatus();
    box.start[outer] += first;
    box.count[outer] = last - first;
    // Where one of them is more than what is asked for, of each only what is.
    if (box.count.elements() / box.count[outer] > end - begin) {
      box.count[outer] = 1;
      for (std::int64_t index = first; index < last; ++index, ++box.start[outer])
        RETURN_IF_ERROR(FillBox(part, parameter, box, begin, end));
      return absl::OkStatus();
    }
  }
  const StridedCopy copy = StridedCopyOf(box, part, box);
  const bool as_it_lies = copy.dims.empty() ||
                          (copy.dims.size() == 1 && copy.dims[0].from_step == 1 && copy.dims[0].to_step == 1);
  const std::int64_t elements = box.count.elements();
  if (as_it_lies && copy.from >= begin && copy.from + elements <= end)
    return source_->Read(parameter, box, values_.data() + (copy.from - begin));
  if (static_cast<std::int64_t>(ours_.size()) < elements) ours_.resize(static_cast<std::size_t>(elements));
  RETURN_IF_ERROR(source_->Read(parameter, box, ours_.data()));
  ForEachStridedTile(
      copy, [&](const StridedTile& tile) { CopyTile(ours_.data(), tile, values_.data(), begin, end); });
  return absl::OkStatus();
}

absl::Status ExportedTensors::Fill(const TensorDeclaration& declared, std::int64_t row, std::int64_t rows,
                                   std::span<std::byte> out) {
  const auto found = index_.find(declared.name);
  if (found == index_.end()) return NotFound("there is no tensor {}", declared.name);
  const TheirTensor& tensor = tensors_[static_cast<std::size_t>(found->second)];
  const std::int64_t width = tensor.shape.rank() == 0 ? 1 : tensor.shape.elements(1, tensor.shape.rank());
  const auto elements = static_cast<std::size_t>(rows * width);
  if (values_.size() < elements) values_.resize(elements);
  for (const auto& [mapping, part] : tensor.parts) {
    const Mapping& ours = mappings_[static_cast<std::size_t>(mapping)];
    const Part& some = ours.parts[static_cast<std::size_t>(part)];
    RETURN_IF_ERROR(FillBox(some, ours.parameter, some.box, row * width, (row + rows) * width));
  }
  const std::span<const float> values(values_.data(), elements);
  if (type_ == StoredType::kF32) {
    std::memcpy(out.data(), values.data(), out.size());
    return absl::OkStatus();
  }
  if (rounded_.size() < elements) rounded_.resize(elements);
  if (type_ == StoredType::kBF16)
    BFloat16FromFloats(values, rounded_.data());
  else
    HalfFromFloats(values, rounded_.data());
  RETURN_IF_ERROR(CheckRange(declared.name, values));
  if (exact_) RETURN_IF_ERROR(CheckExact(declared.name, values));
  std::memcpy(out.data(), rounded_.data(), out.size());
  return absl::OkStatus();
}

absl::Status ExportedTensors::CheckRange(const std::string& name, std::span<const float> values) const {
  const std::uint16_t infinite = type_ == StoredType::kBF16 ? 0x7F80 : 0x7C00;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((rounded_[i] & 0x7FFF) == infinite && std::isfinite(values[i]))
      return FailedPrecondition("{} holds {}, which is larger than any number of {}", name, values[i],
                                Name(type_));
  }
  return absl::OkStatus();
}

absl::Status ExportedTensors::CheckExact(const std::string& name, std::span<const float> values) const {
  const auto back = [&](std::size_t i) {
    return type_ == StoredType::kBF16 ? FloatFromBFloat16(rounded_[i]) : FloatFromHalf(rounded_[i]);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (back(i) == values[i] || std::isnan(values[i])) continue;
    return FailedPrecondition("{} holds {}, which {} cannot say exactly", name, values[i], Name(type_));
  }
  return absl::OkStatus();
}

}  // namespace engine::hf

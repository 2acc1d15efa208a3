// What the Prepare functions check of their tensors.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "engine/backend/backend.h"
#include "engine/graph/gain.h"

namespace engine::backend::cuda {

// `views` hold elements of one type that the kernels work on, that of the first.
inline absl::Status ExpectOneElementType(std::string_view op,
                                         std::initializer_list<const TensorView*> views) {
  const DType dtype = (*views.begin())->dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return Unimplemented("{}: no CUDA kernel for {}, only for f32, bf16 and f16", op, Name(dtype));
  }
  for (const TensorView* view : views) {
    if (view->dtype != dtype) {
      return Unimplemented("{}: no CUDA kernel for {} beside {}", op, Name(view->dtype), Name(dtype));
    }
  }
  return absl::OkStatus();
}

// A cache keeps numbers of x's type, or e4m3.
inline absl::Status ExpectCache(std::string_view op, const TensorView& x, const TensorView& cache) {
  if (cache.dtype == DType::kE4M3) return ExpectOneElementType(op, {&x});
  return ExpectOneElementType(op, {&x, &cache});
}

// Statistics and sums, which are fp32 whatever the elements are.
inline absl::Status ExpectFloat(std::string_view op, std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (view->dtype != DType::kF32) return Internal("{}: a {} where f32 is due", op, Name(view->dtype));
  }
  return absl::OkStatus();
}

inline graph::TensorType TypeOf(const TensorView& view) { return {.shape = view.shape, .dtype = view.dtype}; }

// Of a norm.
inline float GainOffsetOf(const LaunchArgs& args) {
  return static_cast<float>(graph::GainOffset(args.instruction->attributes()));
}

inline absl::Status ExpectScratch(std::string_view op, const LaunchArgs& args, std::int64_t bytes) {
  if (static_cast<std::int64_t>(args.scratch.size()) < bytes) {
    return Internal("{}: {} bytes of scratch, {} needed", op, args.scratch.size(), bytes);
  }
  return absl::OkStatus();
}

// Logical indices along a dim that is held as one piece.
inline absl::StatusOr<Interval> OnePiece(std::string_view op, const TensorView& view, int dim) {
  if (view.extent.dims.empty()) return Interval{0, view.shape[dim]};
  const DimExtent& extent = view.extent.dims[dim];
  if (extent.size() > 1) return Unimplemented("{}: dim {} is held in {} pieces", op, dim, extent.size());
  return extent.empty() ? Interval{} : extent[0];
}

}  // namespace engine::backend::cuda

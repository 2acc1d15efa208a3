// Weights between the host, where they are fp32, and a rank's arena, where they have the plan's dtype.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/executor/executor.h"

namespace engine::state {

// `device` is in the rank's arena; dtype: f32, bf16 or f16 (rounded to nearest even).
absl::Status UploadFloats(std::span<const float> host, void* device, DType dtype, backend::Backend& backend);
absl::Status DownloadFloats(const void* device, DType dtype, backend::Backend& backend,
                            std::span<float> host);

// Whether this rank keeps fp32 master weights beside its parameters of this bucket.
inline bool HasMaster(const plan::Bucket& bucket) { return bucket.master.elements > 0; }

// A local parameter's fp32 values (row-major, padding included) to the parameter and to this rank's part of
// its master weights.
absl::Status UploadParameter(std::span<const float> host, const executor::LocalTensor& tensor,
                             std::span<const executor::OptimizerRange> ranges, backend::Backend& backend);

// Host memory for a stretch of a local parameter: its values in fp32 and, where the parameter has 16 bits,
// rounded. Made to be used again and again, so that its pages are touched once.
struct ParameterStretch {
  static constexpr std::int64_t kMostElements = std::int64_t{1} << 23;
  std::unique_ptr<float[]> values = std::make_unique_for_overwrite<float[]>(kMostElements);
  std::unique_ptr<std::uint16_t[]> rounded = std::make_unique_for_overwrite<std::uint16_t[]>(kMostElements);
};

// values[first, last) of a stretch, rounded to the parameter's type (f32: nothing to do).
void RoundStretch(ParameterStretch& stretch, DType dtype, size_t first, size_t last);

// A stretch of `count` elements to elements `begin` and on of a local parameter, and to this rank's part of
// their master weights.
absl::Status UploadStretch(const ParameterStretch& stretch, std::int64_t begin, std::int64_t count,
                           const executor::LocalTensor& tensor,
                           std::span<const executor::OptimizerRange> ranges, backend::Backend& backend);

}  // namespace engine::state

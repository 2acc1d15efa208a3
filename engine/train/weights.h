// Weights between the host, where they are fp32, and a rank's arena, where they have the plan's dtype.
#pragma once

#include <span>
#include <vector>

#include "engine/executor/executor.h"

namespace engine::train {

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

}  // namespace engine::train

// Descriptors by which Hopper's TMA unit reads and writes boxes of tensors (CUtensorMap, CUDA driver API).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "engine/backend/cuda/libraries/status.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// A packed tensor of three dims, the inner one first, whose rows are multiples of 16 bytes.
struct TensorMapSpec {
  const void* data = nullptr;  // 16-byte aligned
  DType dtype = DType::kBF16;  // bf16, f32, e4m3, e5m2
  std::array<std::int64_t, 3> dims = {};
  std::array<std::uint32_t, 3> box =
      {};  // elements along each dim, at most 256; along the inner one 128 bytes
};

// With 128-byte swizzle: of rows of 128 bytes, the 16-byte piece p of row r stands at piece p XOR r % 8.
// Errors: a driver without TMA; what the driver refuses.
absl::StatusOr<CUtensorMap> MakeTensorMap(const TensorMapSpec& spec);

}  // namespace engine::backend::cuda

// Tensors side by side along their last dim (engine/ops/join.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// One part of the joined rows. `dtype` is that of both tensors: f32, bf16, f16; both are 16-byte aligned.
struct JoinPart {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;    // of the joined tensor
  std::int64_t width = 0;   // elements of a joined row
  std::int64_t first = 0;   // of them, the part's first
  std::int64_t count = 0;   // elements of a row of the part
  std::int64_t shared = 1;  // so many joined rows in turn have one row of the part
};

// Copies part [rows / shared, count] to its place in joined [rows, width].
void LaunchJoin(const JoinPart& at, const void* part, void* joined, cudaStream_t stream);
// part = what stands there, summed over the rows that share it, in fp32 and in order.
void LaunchJoinGrad(const JoinPart& at, const void* joined, void* part, cudaStream_t stream);

}  // namespace engine::backend::cuda

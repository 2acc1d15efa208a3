// What surrounds an exchange between ranks on the device: packing, unpacking, and the reduction that NCCL has
// not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/boxes.h"

namespace engine::backend::cuda {

// Copies one box of elements of `element_bytes` (1, 2, 4 or 8) between two tensors on the device.
void CopyBox(const void* from, void* to, const Box& box, std::int64_t element_bytes, cudaStream_t stream);

// out[n] = log Σ_member exp parts[member, n], in order of member; fp32.
void CombineLogSumExp(const float* parts, std::int64_t members, std::int64_t n, float* out,
                      cudaStream_t stream);

}  // namespace engine::backend::cuda

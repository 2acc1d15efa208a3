// What surrounds an exchange between ranks on the device: packing, unpacking, and reductions of what was
// received.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/boxes.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// Copies one box of elements of `element_bytes` (1, 2, 4 or 8) between two tensors on the device.
void CopyBox(const void* from, void* to, const Box& box, std::int64_t element_bytes, cudaStream_t stream);

// out[n] = log Σ_member exp parts[member, n], in order of member; fp32.
void CombineLogSumExp(const float* parts, std::int64_t members, std::int64_t n, float* out,
                      cudaStream_t stream);

// out[i] = Σ_member part[member][i], in order of member, in fp32 (of f64: in f64), rounded once. The part of
// member `index` is `own`; the others' lie in slots of `slot` bytes from `received` on, in order of member,
// without one for `own`. `out` may be `own`. False: no sums of that dtype.
bool SumParts(const void* own, const void* received, std::int64_t slot, std::int64_t members,
              std::int64_t index, DType dtype, std::int64_t n, void* out, cudaStream_t stream);

}  // namespace engine::backend::cuda

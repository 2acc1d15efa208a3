// Biases by distance of a table by buckets, and the table's gradient (engine/ops/relative_bias.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/graph/distance_buckets.h"

namespace engine::backend::cuda {

// `dtype` is that of every void pointer: f32, bf16, f16.

// biases[h, d + M] = table[bucket(d), h] for d = −M … M: table [n, heads], biases [heads, 2M + 1].
void LaunchRelativeBias(DType dtype, const graph::DistanceBuckets& buckets, std::int64_t heads,
                        const void* table, void* biases, cudaStream_t stream);
// d_table[b, h] = Σ_{bucket(d) = b} d_biases[h, d + M], in order of d; added where `accumulate`.
void LaunchRelativeBiasGrad(DType dtype, const graph::DistanceBuckets& buckets, std::int64_t heads,
                            const void* d_biases, float* d_table, bool accumulate, cudaStream_t stream);

}  // namespace engine::backend::cuda

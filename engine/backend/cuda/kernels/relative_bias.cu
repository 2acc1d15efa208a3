#include "engine/backend/cuda/kernels/relative_bias.h"

#include "engine/backend/cuda/kernels/elementwise.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kBiasThreads = 128;

// A thread a bias.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads)
    RelativeBiasKernel(graph::DistanceBuckets buckets, std::int64_t heads, const T* table, T* biases) {
  const std::int64_t distances = 2 * buckets.distance + 1;
  const std::int64_t at = std::int64_t{blockIdx.x} * kBiasThreads + threadIdx.x;
  if (at >= heads * distances) return;
  const std::int64_t head = at / distances;
  biases[at] = table[buckets.Of(at - head * distances - buckets.distance) * heads + head];
}

// A thread a bucket of a head, which looks through all distances: there are few of them, once a microbatch.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads)
    RelativeBiasGradKernel(graph::DistanceBuckets buckets, std::int64_t heads, const T* d_biases,
                           float* d_table, bool accumulate) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kBiasThreads + threadIdx.x;
  if (at >= heads * buckets.buckets) return;
  const std::int64_t distances = 2 * buckets.distance + 1;
  const T* of_head = d_biases + at % heads * distances;
  float sum = accumulate ? d_table[at] : 0.0F;
  for (std::int64_t i = 0; i < distances; ++i)
    if (buckets.Of(i - buckets.distance) == at / heads) sum += ToFloat(of_head[i]);
  d_table[at] = sum;
}

unsigned BiasBlocks(std::int64_t threads) { return static_cast<unsigned>(CeilDivide(threads, kBiasThreads)); }

}  // namespace

void LaunchRelativeBias(DType dtype, const graph::DistanceBuckets& buckets, std::int64_t heads,
                        const void* table, void* biases, cudaStream_t stream) {
  const unsigned blocks = BiasBlocks(heads * (2 * buckets.distance + 1));
  if (blocks == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    RelativeBiasKernel<<<blocks, kBiasThreads, 0, stream>>>(buckets, heads, static_cast<const T*>(table),
                                                            static_cast<T*>(biases));
  });
}

void LaunchRelativeBiasGrad(DType dtype, const graph::DistanceBuckets& buckets, std::int64_t heads,
                            const void* d_biases, float* d_table, bool accumulate, cudaStream_t stream) {
  const unsigned blocks = BiasBlocks(heads * buckets.buckets);
  if (blocks == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    RelativeBiasGradKernel<<<blocks, kBiasThreads, 0, stream>>>(
        buckets, heads, static_cast<const T*>(d_biases), d_table, accumulate);
  });
}

}  // namespace engine::backend::cuda

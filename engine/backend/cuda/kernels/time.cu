#include "engine/backend/cuda/kernels/mix.cuh"
#include "engine/backend/cuda/kernels/time.h"

namespace engine::backend::cuda {
namespace {

__device__ std::int64_t Now() {
  std::int64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void Write(std::int64_t* to) { *to = Now(); }

__global__ void Spin(std::uint64_t seed, std::uint32_t* count, std::int64_t most_ns) {
  const std::int64_t begin = Now();
  const std::uint64_t number = Mix(Mix(seed) + atomicAdd(count, 1U));
  const auto wait_ns = static_cast<std::int64_t>(number % static_cast<std::uint64_t>(most_ns));
  while (Now() - begin < wait_ns) __nanosleep(100);
}

}  // namespace

void WriteTime(std::int64_t* to, cudaStream_t stream) { Write<<<1, 1, 0, stream>>>(to); }

void HoldUp(std::uint64_t seed, std::uint32_t* count, std::int64_t most_ns, cudaStream_t stream) {
  Spin<<<1, 1, 0, stream>>>(seed, count, most_ns);
}

}  // namespace engine::backend::cuda

#include "engine/backend/cuda/kernels/time.h"

namespace engine::backend::cuda {
namespace {

__device__ std::int64_t Now() {
  std::int64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// SplitMix64 (Steele, Lea, Flood 2014).
__device__ std::uint64_t Mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
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

#include <algorithm>

#include "engine/backend/cuda/kernels/hash.h"
#include "engine/backend/cuda/kernels/mix.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr std::int64_t kMostBlocks = 528;  // four for each multiprocessor of an H200
constexpr std::int64_t kWord = sizeof(std::uint64_t);

// Word i of `count` bytes.
template <bool aligned>
__device__ std::uint64_t WordOf(const std::byte* bytes, std::int64_t count, std::int64_t i) {
  const std::int64_t begin = i * kWord;
  if (aligned && begin + kWord <= count) return reinterpret_cast<const std::uint64_t*>(bytes)[i];
  std::uint64_t word = 0;
  for (std::int64_t b = begin; b < count && b < begin + kWord; ++b)
    word |= static_cast<std::uint64_t>(bytes[b]) << (8 * (b - begin));
  return word;
}

template <bool aligned>
__global__ void Add(const std::byte* bytes, std::int64_t count, std::uint64_t* hash) {
  const std::int64_t words = (count + kWord - 1) / kWord;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned long long sum = first == 0 ? Mix(static_cast<std::uint64_t>(count)) : 0;
  for (std::int64_t i = first; i < words; i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    sum += Mix(Mix(static_cast<std::uint64_t>(i) + 1) ^ WordOf<aligned>(bytes, count, i));
  for (int apart = kWarp / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffff, sum, apart);
  if (threadIdx.x % kWarp == 0) atomicAdd(reinterpret_cast<unsigned long long*>(hash), sum);
}

}  // namespace

void AddHash(std::span<const std::byte> bytes, std::uint64_t* hash, cudaStream_t stream) {
  const auto count = static_cast<std::int64_t>(bytes.size());
  const std::int64_t words = (count + kWord - 1) / kWord;
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::int64_t>((words + kThreads - 1) / kThreads, 1, kMostBlocks));
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % kWord == 0;
  (aligned ? Add<true> : Add<false>)<<<blocks, kThreads, 0, stream>>>(bytes.data(), count, hash);
}

}  // namespace engine::backend::cuda

// Tokens of a prompt to their rows of a cache, and tokens that are wanted out of a batch (ops/cached_attention.cpp).
#include "engine/backend/cuda/kernels/cache.cuh"
#include "engine/backend/cuda/kernels/cached_attention.h"

namespace engine::backend::cuda {
namespace {

// The place in the cache [slots, rows, width] of element i of the tokens [samples, tokens, width]; negative: it is not kept, as its
// sample has no slot, it is padding, or a later token takes its row.
__device__ __forceinline__ std::int64_t PlaceOf(const CacheUpdate& p, std::int64_t i, std::int64_t width) {
  const std::int64_t token = i / width;
  const std::int64_t sample = token / p.tokens;
  const std::int64_t s = token % p.tokens;
  const std::int64_t slot = p.slots[sample];
  const std::int64_t position = p.positions[token];
  if (slot < 0 || (s > 0 && p.positions[token - 1] == position)) return -1;
  if (p.positions[sample * p.tokens + p.tokens - 1] - position >= p.rows) return -1;
  return (slot * p.rows + position % p.rows) * width + i % width;
}

// A thread a unit of 16 or 2 bytes, or 4.
template <typename Unit>
__global__ void UpdateCache(CacheUpdate p, std::int64_t units) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.samples * p.tokens * units) return;
  const std::int64_t to = PlaceOf(p, i, units);
  if (to >= 0) static_cast<Unit*>(p.cache)[to] = static_cast<const Unit*>(p.x)[i];
}

// A thread a number.
template <typename T>
__global__ void UpdateNarrowCache(CacheUpdate p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.samples * p.tokens * p.width) return;
  const std::int64_t to = PlaceOf(p, i, p.width);
  if (to >= 0) static_cast<E4M3*>(p.cache)[to] = ToKeep<E4M3>(static_cast<const T*>(p.x)[i]);
}

template <typename T>
void LaunchNarrow(const CacheUpdate& update, cudaStream_t stream) {
  constexpr int kNumberThreads = 256;
  const std::int64_t numbers = update.samples * update.tokens * update.width;
  const auto blocks = static_cast<unsigned>((numbers + kNumberThreads - 1) / kNumberThreads);
  if (blocks > 0) UpdateNarrowCache<T><<<blocks, kNumberThreads, 0, stream>>>(update);
}

template <typename Unit>
__global__ void Take(TakeTokens p, std::int64_t units) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.samples * p.taken * units) return;
  const std::int64_t row = i / units;
  const std::int64_t token = row / p.taken * p.tokens + p.index[row];
  static_cast<Unit*>(p.y)[i] = static_cast<const Unit*>(p.x)[token * units + i % units];
}

// Calls launch(Unit(), units of a row, blocks) with the widest unit that rows are made of.
template <typename Launch>
void InUnits(DType dtype, std::int64_t rows, std::int64_t width, const Launch& launch) {
  constexpr int kUnitThreads = 256;
  const std::int64_t bytes = width * SizeOf(dtype);
  const auto run = [&](auto unit) {
    const std::int64_t units = bytes / static_cast<std::int64_t>(sizeof(unit));
    const std::int64_t blocks = (rows * units + kUnitThreads - 1) / kUnitThreads;
    if (blocks > 0) launch(unit, units, static_cast<unsigned>(blocks), kUnitThreads);
  };
  if (bytes % 16 == 0) {
    run(uint4());
  } else if (bytes % 4 == 0) {
    run(std::uint32_t());
  } else {
    run(std::uint16_t());
  }
}

}  // namespace

void LaunchCacheUpdate(const CacheUpdate& update, cudaStream_t stream) {
  if (update.narrow_cache) {
    switch (update.dtype) {
      case DType::kBF16:
        return LaunchNarrow<__nv_bfloat16>(update, stream);
      case DType::kF16:
        return LaunchNarrow<__half>(update, stream);
      default:
        return LaunchNarrow<float>(update, stream);
    }
  }
  InUnits(update.dtype, update.samples * update.tokens, update.width,
          [&](auto unit, std::int64_t units, unsigned blocks, int threads) {
            UpdateCache<decltype(unit)><<<blocks, threads, 0, stream>>>(update, units);
          });
}

void LaunchTakeTokens(const TakeTokens& take, cudaStream_t stream) {
  InUnits(take.dtype, take.samples * take.taken, take.width,
          [&](auto unit, std::int64_t units, unsigned blocks, int threads) {
            Take<decltype(unit)><<<blocks, threads, 0, stream>>>(take, units);
          });
}

}  // namespace engine::backend::cuda

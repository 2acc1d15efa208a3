#include "engine/backend/cuda/kernels/norm.h"

#include "engine/backend/cuda/kernels/column_sums.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kPlainThreads = 256;
constexpr int kRowsPerBlock = 4;  // where a row is one warp's

template <int kWarps>
__device__ __forceinline__ float RowSum(float x, float* shared) {
  if constexpr (kWarps == 1) {
    return WarpSum(x);
  } else {
    return BlockSum<kWarps * kWarp>(x, shared);
  }
}

// A row lies in the registers of kWarps warps, kVectors times eight columns a thread, so that each byte is
// read once; many rows are in flight on a multiprocessor.
template <typename T, int kWarps, int kVectors, bool kLayer, bool kAdd>
__global__ void __launch_bounds__(kWarps == 1 ? kRowsPerBlock * kWarp : kWarps * kWarp)
    NormKernel(Norm norm) {
  constexpr int kThreads = kWarps * kWarp;  // of a row
  __shared__ float shared[kWarps];
  const int thread = threadIdx.x % kThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / kThreads) + threadIdx.x / kThreads;
  if (row >= norm.rows) return;  // whole warps, and never where a row is a block's
  const int columns = static_cast<int>(norm.columns);
  const std::int64_t start = row * columns;
  const auto* x = static_cast<const T*>(norm.x) + start;
  const auto* gamma = static_cast<const T*>(norm.gamma);
  const auto* beta = static_cast<const T*>(norm.beta);
  auto* y = static_cast<T*>(norm.y) + start;

  Pack8<T> held[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * kThreads + thread) * 8;
    if (column < columns) held[v] = LoadPack8Streaming(x + column);
  }
  if constexpr (kAdd) {
    const auto* branch = static_cast<const T*>(norm.branch) + start;
    auto* sum = static_cast<T*>(norm.sum) + start;
    Pack8<T> added[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * kThreads + thread) * 8;
      if (column < columns) added[v] = LoadPack8Streaming(branch + column);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * kThreads + thread) * 8;
      if (column >= columns) continue;
      float a[8];
      float b[8];
      Unpack8(held[v], a);
      Unpack8(added[v], b);
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] += b[i];
      held[v] = ToPack8<T>(a);
      StorePack8(sum + column, held[v]);
    }
  }

  const float per_column = 1.0F / static_cast<float>(columns);
  float mean = 0;
  if constexpr (kLayer) {
    float total = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if ((v * kThreads + thread) * 8 >= columns) continue;
      float a[8];
      Unpack8(held[v], a);
#pragma unroll
      for (int i = 0; i < 8; ++i) total += a[i];
    }
    mean = RowSum<kWarps>(total, shared) * per_column;
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if ((v * kThreads + thread) * 8 >= columns) continue;
    float a[8];
    Unpack8(held[v], a);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += (a[i] - mean) * (a[i] - mean);
  }
  const float rstd = rsqrtf(RowSum<kWarps>(squares, shared) * per_column + norm.epsilon);

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * kThreads + thread) * 8;
    if (column >= columns) continue;
    float a[8];
    float scale[8];
    Unpack8(held[v], a);
    Load8(gamma + column, scale);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = (a[i] - mean) * rstd * scale[i];
    if constexpr (kLayer) {
      float shift[8];
      Load8(beta + column, shift);
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] += shift[i];
    }
    Store8(y + column, a);
  }
  if (thread == 0) {
    if constexpr (kLayer) norm.mean[row] = mean;
    norm.rstd[row] = rstd;
  }
}

// Any number of columns: a block to a row, which it reads three times, twice from cache.
template <typename T>
__global__ void __launch_bounds__(kPlainThreads) PlainNormKernel(Norm norm) {
  __shared__ float shared[kPlainThreads / kWarp];
  const std::int64_t columns = norm.columns;
  const std::int64_t start = std::int64_t{blockIdx.x} * columns;
  const T* x = static_cast<const T*>(norm.x) + start;
  const auto* gamma = static_cast<const T*>(norm.gamma);
  const auto* beta = static_cast<const T*>(norm.beta);
  auto* y = static_cast<T*>(norm.y) + start;
  if (norm.branch != nullptr) {  // every thread reads back only what it wrote
    const auto* branch = static_cast<const T*>(norm.branch) + start;
    auto* sum = static_cast<T*>(norm.sum) + start;
    for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
      sum[i] = FromFloat<T>(ToFloat(x[i]) + ToFloat(branch[i]));
    }
    x = sum;
  }
  float mean = 0;
  if (beta != nullptr) {
    float total = 0;
    for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) total += ToFloat(x[i]);
    mean = BlockSum<kPlainThreads>(total, shared) / static_cast<float>(columns);
  }
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
    const float a = ToFloat(x[i]) - mean;
    squares += a * a;
  }
  const float rstd =
      rsqrtf(BlockSum<kPlainThreads>(squares, shared) / static_cast<float>(columns) + norm.epsilon);
  for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
    const float a = (ToFloat(x[i]) - mean) * rstd * ToFloat(gamma[i]);
    y[i] = FromFloat<T>(beta != nullptr ? a + ToFloat(beta[i]) : a);
  }
  if (threadIdx.x == 0) {
    if (beta != nullptr) norm.mean[blockIdx.x] = mean;
    norm.rstd[blockIdx.x] = rstd;
  }
}

// Sums kCount (a power of two, at most 32) values over a warp, halving how many a lane holds at each step: 9
// shuffles for 8 values where one after the other takes 40. Lane l gets the sum of value l / (32 / kCount).
template <int kCount>
__device__ __forceinline__ float WarpSums(float (&values)[kCount]) {
  const int lane = threadIdx.x % kWarp;
  int held = kCount;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    if (held == 1) {
      values[0] += __shfl_xor_sync(kAllLanes, values[0], distance);
      continue;
    }
    held /= 2;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= held) continue;
      const float give = upper ? values[i] : values[i + held];
      const float keep = upper ? values[i + held] : values[i];
      values[i] = keep + __shfl_xor_sync(kAllLanes, give, distance);
    }
  }
  return values[0];
}

template <int kStages>
__device__ __forceinline__ void WaitForStage(int stages) {
  if constexpr (kStages == 1) {
    WaitForCopies<0>();
  } else {
    stages == kStages ? WaitForCopies<kStages - 1>() : WaitForStage<kStages - 1>(stages);
  }
}

constexpr int kMaxStages = 4;

// The grid stays for all rows. A block takes kRows rows a turn, its threads side by side on each, kVectors
// times eight columns a thread, whose sums over the rows stay in registers. Rows of later turns are copied
// ahead into a ring of `stages` turns in shared memory; a thread reads only what it copied itself, so that a
// turn has one barrier, that of the two means.
template <typename T, int kVectors, int kRows, bool kLayer, bool kResidual, bool kBias>
__global__ void __launch_bounds__(kNormGradMaxThreads) NormGradKernel(NormGrad grad, int stages) {
  constexpr int kTensors = kResidual ? 3 : 2;
  constexpr int kMeans = kLayer ? 2 * kRows : kRows;
  constexpr int kLanesPerMean = kWarp / kMeans;
  constexpr int kMaxWarps = kNormGradMaxThreads / kWarp;
  constexpr int kSums = 1 + (kLayer ? 1 : 0) + (kBias ? 1 : 0);
  extern __shared__ uint4 ring_bytes[];  // [stages, kRows, kTensors, D]
  __shared__ float means[2][kMaxWarps][kMeans];
  T* ring = reinterpret_cast<T*>(ring_bytes);

  const int columns = static_cast<int>(grad.columns);
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t turns = (grad.rows + kRows - 1) / kRows;
  const auto* dy = static_cast<const T*>(grad.dy);
  const auto* x = static_cast<const T*>(grad.x);
  const auto* residual = static_cast<const T*>(grad.residual);
  auto* dx = static_cast<T*>(grad.dx);

  const auto fetch = [&](std::int64_t turn, int stage) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = turn * kRows + r;
      if (row >= grad.rows) break;
      T* to = ring + static_cast<std::int64_t>(stage * kRows + r) * kTensors * columns;
      const std::int64_t start = row * columns;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = (v * threads + thread) * 8;
        if (column >= columns) continue;
#pragma unroll
        for (int part = 0; part < static_cast<int>(sizeof(T) / 2); ++part) {
          const int at = column + part * 16 / static_cast<int>(sizeof(T));
          CopyAsync16(to + at, x + start + at);
          CopyAsync16(to + columns + at, dy + start + at);
          if constexpr (kResidual) CopyAsync16(to + 2 * columns + at, residual + start + at);
        }
      }
    }
  };
  float next_mean[kRows];
  float next_rstd[kRows];
  const auto fetch_statistics = [&](std::int64_t turn) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = turn * kRows + r;
      next_mean[r] = kLayer && row < grad.rows ? grad.mean[row] : 0.0F;
      next_rstd[r] = row < grad.rows ? grad.rstd[row] : 0.0F;
    }
  };

  Pack8<T> gamma[kVectors];
  float d_gamma[kVectors][8] = {};
  float d_beta[kLayer ? kVectors : 1][8] = {};
  float d_bias[kBias ? kVectors : 1][8] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * threads + thread) * 8;
    if (column < columns) gamma[v] = LoadPack8(static_cast<const T*>(grad.gamma) + column);
  }

  const std::int64_t step = gridDim.x;
  for (int stage = 0; stage + 1 < stages; ++stage) {
    fetch(blockIdx.x + stage * step, stage);
    EndCopyGroup();
  }
  fetch_statistics(blockIdx.x);

  int stage = 0;
  int buffer = 0;
  const float per_column = 1.0F / static_cast<float>(columns);
  for (std::int64_t turn = blockIdx.x; turn < turns; turn += step) {
    fetch(turn + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
    EndCopyGroup();
    float mean[kRows];
    float rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] = next_mean[r];
      rstd[r] = next_rstd[r];
    }
    fetch_statistics(turn + step);
    WaitForStage<kMaxStages>(stages);

    float terms[kMeans] = {};  // of row r: Σ dy·γ·x̂ at r, Σ dy·γ at kRows + r
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (turn * kRows + r >= grad.rows) break;
      const T* from = ring + static_cast<std::int64_t>(stage * kRows + r) * kTensors * columns;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = (v * threads + thread) * 8;
        if (column >= columns) continue;
        float a[8];
        float d[8];
        float g[8];
        Load8(from + column, a);
        Load8(from + columns + column, d);
        Unpack8(gamma[v], g);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float normed = (a[i] - mean[r]) * rstd[r];
          d_gamma[v][i] += d[i] * normed;
          if constexpr (kLayer) d_beta[v][i] += d[i];
          const float scaled = d[i] * g[i];
          terms[r] += scaled * normed;
          if constexpr (kLayer) terms[kRows + r] += scaled;
        }
      }
    }
    const float warp_sum = WarpSums(terms);
    if (thread % kWarp % kLanesPerMean == 0) {
      means[buffer][thread / kWarp][thread % kWarp / kLanesPerMean] = warp_sum;
    }
    __syncthreads();
    float sums[kMeans] = {};
    for (int warp = 0; warp < threads / kWarp; ++warp) {
#pragma unroll
      for (int i = 0; i < kMeans; ++i) sums[i] += means[buffer][warp][i];
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = turn * kRows + r;
      if (row >= grad.rows) break;
      const float mean_normed = sums[r] * per_column;
      const float mean_plain = kLayer ? sums[kMeans - kRows + r] * per_column : 0.0F;
      const T* from = ring + static_cast<std::int64_t>(stage * kRows + r) * kTensors * columns;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = (v * threads + thread) * 8;
        if (column >= columns) continue;
        float a[8];
        float d[8];
        float g[8];
        Load8(from + column, a);
        Load8(from + columns + column, d);
        Unpack8(gamma[v], g);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float normed = (a[i] - mean[r]) * rstd[r];
          const float centred = kLayer ? d[i] * g[i] - mean_plain : d[i] * g[i];
          a[i] = rstd[r] * (centred - normed * mean_normed);
        }
        if constexpr (kResidual) {
          Load8(from + 2 * columns + column, d);
#pragma unroll
          for (int i = 0; i < 8; ++i) a[i] += d[i];
        }
        const Pack8<T> rounded = ToPack8<T>(a);
        StorePack8(dx + row * columns + column, rounded);
        if constexpr (kBias) {
          Unpack8(rounded, a);
#pragma unroll
          for (int i = 0; i < 8; ++i) d_bias[v][i] += a[i];
        }
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
    buffer ^= 1;
  }

  float* line = grad.partial + std::int64_t{blockIdx.x} * kSums * columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * threads + thread) * 8;
    if (column >= columns) continue;
    Store8(line + column, d_gamma[v]);
    if constexpr (kLayer) Store8(line + columns + column, d_beta[v]);
    if constexpr (kBias) Store8(line + (kSums - 1) * columns + column, d_bias[v]);
  }
}

// Any number of columns: a block to a row at a time, the sums over its rows in its line of scratch. A thread
// keeps to its own columns.
template <typename T>
__global__ void __launch_bounds__(kPlainThreads) PlainNormGradKernel(NormGrad grad) {
  __shared__ float shared[kPlainThreads / kWarp];
  const bool layer = grad.mean != nullptr;
  const bool bias = grad.d_bias != nullptr;
  const std::int64_t columns = grad.columns;
  const int sums = 1 + (layer ? 1 : 0) + (bias ? 1 : 0);
  const auto* gamma = static_cast<const T*>(grad.gamma);
  float* d_gamma = grad.partial + blockIdx.x * sums * columns;
  float* d_beta = d_gamma + columns;               // only if layer
  float* d_bias = d_gamma + (sums - 1) * columns;  // only if bias
  for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
    d_gamma[i] = 0;
    if (layer) d_beta[i] = 0;
    if (bias) d_bias[i] = 0;
  }
  for (std::int64_t row = blockIdx.x; row < grad.rows; row += gridDim.x) {
    const T* dy = static_cast<const T*>(grad.dy) + row * columns;
    const T* x = static_cast<const T*>(grad.x) + row * columns;
    const T* residual = static_cast<const T*>(grad.residual) + row * columns;
    T* dx = static_cast<T*>(grad.dx) + row * columns;
    const float mean = layer ? grad.mean[row] : 0.0F;
    const float rstd = grad.rstd[row];
    float plain = 0;
    float with_normed = 0;
    for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
      const float d = ToFloat(dy[i]);
      const float normed = (ToFloat(x[i]) - mean) * rstd;
      const float scaled = d * ToFloat(gamma[i]);
      plain += scaled;
      with_normed += scaled * normed;
      d_gamma[i] += d * normed;
      if (layer) d_beta[i] += d;
    }
    const float mean_plain =
        layer ? BlockSum<kPlainThreads>(plain, shared) / static_cast<float>(columns) : 0.0F;
    const float mean_normed = BlockSum<kPlainThreads>(with_normed, shared) / static_cast<float>(columns);
    for (std::int64_t i = threadIdx.x; i < columns; i += kPlainThreads) {
      const float normed = (ToFloat(x[i]) - mean) * rstd;
      float value = rstd * (ToFloat(dy[i]) * ToFloat(gamma[i]) - mean_plain - normed * mean_normed);
      if (grad.residual != nullptr) value += ToFloat(residual[i]);
      dx[i] = FromFloat<T>(value);
      if (bias) d_bias[i] += Rounded<T>(value);
    }
  }
}

template <typename T, int kWarps, int kVectors>
void LaunchHeld(const Norm& norm, cudaStream_t stream) {
  constexpr int kRows = kWarps == 1 ? kRowsPerBlock : 1;
  const auto blocks = static_cast<unsigned>(CeilDivide(norm.rows, kRows));
  constexpr int kThreads = kRows * kWarps * kWarp;
  const bool add = norm.branch != nullptr;
  if (norm.beta != nullptr) {
    add ? NormKernel<T, kWarps, kVectors, true, true><<<blocks, kThreads, 0, stream>>>(norm)
        : NormKernel<T, kWarps, kVectors, true, false><<<blocks, kThreads, 0, stream>>>(norm);
  } else {
    add ? NormKernel<T, kWarps, kVectors, false, true><<<blocks, kThreads, 0, stream>>>(norm)
        : NormKernel<T, kWarps, kVectors, false, false><<<blocks, kThreads, 0, stream>>>(norm);
  }
}

template <typename T>
void LaunchNormOf(const Norm& norm, cudaStream_t stream) {
  const std::int64_t pieces = norm.columns / 8;
  if (norm.columns % 8 != 0 || pieces > 8 * 8 * kWarp) {
    PlainNormKernel<T><<<static_cast<unsigned>(norm.rows), kPlainThreads, 0, stream>>>(norm);
  } else if (pieces <= 2 * kWarp) {
    LaunchHeld<T, 1, 2>(norm, stream);
  } else if (pieces <= 3 * kWarp) {
    LaunchHeld<T, 1, 3>(norm, stream);
  } else if (pieces <= 4 * kWarp) {
    LaunchHeld<T, 1, 4>(norm, stream);
  } else if (pieces <= 5 * kWarp) {
    LaunchHeld<T, 1, 5>(norm, stream);
  } else if (pieces <= 6 * kWarp) {
    LaunchHeld<T, 1, 6>(norm, stream);
  } else if (pieces <= 8 * kWarp) {
    LaunchHeld<T, 1, 8>(norm, stream);
  } else if (pieces <= 4 * 4 * kWarp) {
    LaunchHeld<T, 4, 4>(norm, stream);
  } else if (pieces <= 8 * 4 * kWarp) {
    LaunchHeld<T, 8, 4>(norm, stream);
  } else {
    LaunchHeld<T, 8, 8>(norm, stream);
  }
}

// What a block may ask for, less the kernel's static arrays and what the driver keeps.
std::int64_t SharedMemoryLimit(cudaDeviceAttr attribute) {
  int device = 0;
  int bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, attribute, device);
  return bytes;
}

// False: not even one turn fits into this device's shared memory.
template <typename T, int kVectors, bool kLayer, bool kResidual, bool kBias>
bool LaunchRing(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  constexpr int kRows = kVectors == 1 ? 2 : 1;
  constexpr std::int64_t kReserved = 3 * 1024;  // static arrays and 1 KiB that the driver keeps of each block
  const std::int64_t stage =
      (kResidual ? 3 : 2) * kRows * grad.columns * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t block = SharedMemoryLimit(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kReserved;
  const std::int64_t share =
      SharedMemoryLimit(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / grid.blocks_per_multiprocessor -
      kReserved;
  if (stage > block) return false;
  const int stages = static_cast<int>(
      std::min<std::int64_t>(kMaxStages, std::max<std::int64_t>(1, std::min(share, block) / stage)));
  const auto kernel = NormGradKernel<T, kVectors, kRows, kLayer, kResidual, kBias>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(stages * stage));
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
  kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, stages * stage, stream>>>(grad, stages);
  return true;
}

template <typename T, int kVectors>
bool LaunchRingOf(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  const bool bias = grad.d_bias != nullptr;
  if (grad.mean != nullptr) {
    if (grad.residual == nullptr) return LaunchRing<T, kVectors, true, false, false>(grad, grid, stream);
    return bias ? LaunchRing<T, kVectors, true, true, true>(grad, grid, stream)
                : LaunchRing<T, kVectors, true, true, false>(grad, grid, stream);
  }
  if (grad.residual == nullptr) return LaunchRing<T, kVectors, false, false, false>(grad, grid, stream);
  return bias ? LaunchRing<T, kVectors, false, true, true>(grad, grid, stream)
              : LaunchRing<T, kVectors, false, true, false>(grad, grid, stream);
}

template <typename T>
void LaunchNormGradOf(const NormGrad& grad, const NormGradGrid& grid, cudaStream_t stream) {
  const bool launched = grid.vectors == 1   ? LaunchRingOf<T, 1>(grad, grid, stream)
                        : grid.vectors == 2 ? LaunchRingOf<T, 2>(grad, grid, stream)
                        : grid.vectors == 4 ? LaunchRingOf<T, 4>(grad, grid, stream)
                                            : false;
  if (!launched) {
    PlainNormGradKernel<T><<<static_cast<unsigned>(grid.blocks), kPlainThreads, 0, stream>>>(grad);
  }
}

}  // namespace

void LaunchNorm(const Norm& norm, cudaStream_t stream) {
  if (norm.rows == 0) return;
  WithElementType(norm.dtype, [&](auto element) { LaunchNormOf<decltype(element)>(norm, stream); });
}

void LaunchNormGrad(const NormGrad& grad, cudaStream_t stream) {
  const NormGradGrid grid = MakeNormGradGrid(grad.rows, grad.columns);
  if (grad.rows > 0) {
    WithElementType(grad.dtype,
                    [&](auto element) { LaunchNormGradOf<decltype(element)>(grad, grid, stream); });
  }
  ColumnSums sums{.partial = grad.partial, .lines = grid.blocks, .sums = 0, .columns = grad.columns};
  const auto add = [&](float* total, bool accumulate) {
    if (total == nullptr) return;
    sums.accumulate |= (accumulate ? 1U : 0U) << sums.sums;
    sums.totals[sums.sums++] = total;
  };
  add(grad.d_gamma, grad.accumulate_gamma);
  add(grad.d_beta, grad.accumulate_beta);
  add(grad.d_bias, grad.accumulate_bias);
  AddLines(sums, stream);
}

}  // namespace engine::backend::cuda

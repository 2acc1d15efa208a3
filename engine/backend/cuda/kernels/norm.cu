#include "engine/backend/cuda/kernels/norm.h"

#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/norm.cuh"
#include "engine/backend/cuda/profile/column_sums.h"

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

// Many rows are in flight on a multiprocessor.
template <typename T, int kWarps, int kVectors, bool kLayer, bool kAdd, bool kPart, bool kDrop>
__global__ void __launch_bounds__(kWarps == 1 ? kRowsPerBlock * kWarp : kWarps * kWarp)
    NormKernel(__grid_constant__ const Norm norm) {
  constexpr int kThreads = kWarps * kWarp;  // of a row
  __shared__ float shared[kWarps];
  LetNextBegin();
  AwaitEarlier();
  const int thread = threadIdx.x % kThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / kThreads) + threadIdx.x / kThreads;
  if (row >= norm.rows) return;  // whole warps, and never where a row is a block's
  auto* y = static_cast<T*>(norm.y) + row * norm.columns;
  NormRow<T, kWarps, kVectors, kLayer, kAdd, kPart, kDrop>(
      norm, row, thread, [&](float x) { return RowSum<kWarps>(x, shared); },
      [&](int column, const float(&eight)[8]) { Store8(y + column, eight); });
}

// Any number of columns: a block to a row, which it reads three times, twice from cache.
template <typename T>
__global__ void __launch_bounds__(kPlainThreads) PlainNormKernel(__grid_constant__ const Norm norm) {
  __shared__ float shared[kPlainThreads / kWarp];
  LetNextBegin();
  AwaitEarlier();
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
      const float bias = norm.bias != nullptr ? ToFloat(static_cast<const T*>(norm.bias)[i]) : 0.0F;
      if (norm.dropout.below == 0) {
        sum[i] = FromFloat<T>(ToFloat(x[i]) + ToFloat(branch[i]) + bias);
      } else {
        const std::int64_t index = LogicalRow(norm.dropout.drawn, std::int64_t{blockIdx.x}) + i;
        const float kept = Dropped(norm.dropout, IterationOf(norm.dropout.drawn),
                                   static_cast<std::uint64_t>(index), ToFloat(branch[i]) + bias);
        sum[i] = FromFloat<T>(ToFloat(x[i]) + kept);
      }
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
    const float normed = Normed<true>(ToFloat(x[i]), mean, rstd);
    const float scale = ToFloat(gamma[i]) + norm.gain_offset;
    y[i] = FromFloat<T>(beta != nullptr ? NormOutput<true>(normed, scale, ToFloat(beta[i]))
                                        : NormOutput<false>(normed, scale, 0.0F));
  }
  if (threadIdx.x == 0) {
    if (beta != nullptr) norm.mean[blockIdx.x] = mean;
    norm.rstd[blockIdx.x] = rstd;
  }
}

template <typename T, int kWarps, int kVectors, bool kLayer>
void LaunchHeldOf(const Norm& norm, cudaStream_t stream) {
  constexpr int kRows = kWarps == 1 ? kRowsPerBlock : 1;
  const auto blocks = static_cast<unsigned>(CeilDivide(norm.rows, kRows));
  constexpr int kThreads = kRows * kWarps * kWarp;
  const bool drops = norm.dropout.below != 0;
  const bool part = norm.part != nullptr;
  const auto kernel = norm.branch == nullptr ? NormKernel<T, kWarps, kVectors, kLayer, false, false, false>
                      : drops && part        ? NormKernel<T, kWarps, kVectors, kLayer, true, true, true>
                      : drops                ? NormKernel<T, kWarps, kVectors, kLayer, true, false, true>
                      : part                 ? NormKernel<T, kWarps, kVectors, kLayer, true, true, false>
                                             : NormKernel<T, kWarps, kVectors, kLayer, true, false, false>;
  Launch(norm.rows <= kMostEarlyRows, kernel, blocks, kThreads, 0, stream, norm);
}

template <typename T, int kWarps, int kVectors>
void LaunchHeld(const Norm& norm, cudaStream_t stream) {
  norm.beta != nullptr ? LaunchHeldOf<T, kWarps, kVectors, true>(norm, stream)
                       : LaunchHeldOf<T, kWarps, kVectors, false>(norm, stream);
}

template <typename T>
void LaunchNormOf(const Norm& norm, cudaStream_t stream) {
  const std::int64_t pieces = norm.columns / 8;
  if (!HoldsNormRows(norm.columns)) {
    Launch(norm.rows <= kMostEarlyRows, PlainNormKernel<T>, static_cast<unsigned>(norm.rows), kPlainThreads,
           0, stream, norm);
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

}  // namespace

void LaunchNorm(const Norm& norm, cudaStream_t stream) {
  if (norm.rows == 0) return;
  WithElementType(norm.dtype, [&](auto element) { LaunchNormOf<decltype(element)>(norm, stream); });
}

}  // namespace engine::backend::cuda

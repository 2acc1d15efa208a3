// Memory sets the time: a block reads a part of one head's weight once, for up to eight rows of x.
#include "engine/backend/cuda/kernels/head_linear.h"

#include <algorithm>

#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 8 * kWarp;  // of C, that a warp takes at a time: eight a lane
constexpr int kMostRows = 8;         // of x, in one block
constexpr int kTerms = 4;            // of N, that a warp takes at a time

// Eight elements of a row of C of them; zeros behind its end. kWhole: rows are made of whole eights on 16-byte boundaries.
template <typename T, bool kWhole>
__device__ __forceinline__ void Load8(const T* row, std::int64_t at, std::int64_t end, float (&x)[8]) {
  if constexpr (kWhole) {
    if (at < end) {
      Unpack8(*reinterpret_cast<const Pack8<T>*>(row + at), x);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = at + i < end ? ToFloat(row[at + i]) : 0.0F;
}

// y_c = Σ_n x_n w_nc. grid: tiles of kColumns, heads, tiles of kRows rows. The warps take rows of w in turns and add up in their
// order.
template <typename T, bool kWhole, int kRows>
__global__ void __launch_bounds__(kThreads) SumRows(HeadLinear p) {
  __shared__ float sums[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t head = blockIdx.y;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + lane * 8;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.z) * kRows;
  const T* const w = static_cast<const T*>(p.w) + head * p.n * p.c;
  const T* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = min(first_row + r, p.rows - 1);
    x[r] = static_cast<const T*>(p.x) + (row * p.heads + head) * p.x_width + p.first;
  }
  LetNextBegin();
  AwaitEarlier();
  float y[kRows][8] = {};
#pragma unroll 4
  for (std::int64_t n = warp; n < p.n; n += kWarps) {
    float of_w[8];
    Load8<T, kWhole>(w + n * p.c, column, p.c, of_w);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float of_x = ToFloat(x[r][n]);
#pragma unroll
      for (int i = 0; i < 8; ++i) y[r][i] += of_x * of_w[i];
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[warp][lane * 8 + i] = y[r][i];
    __syncthreads();
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += sums[i][threadIdx.x];
    if (at < p.c && first_row + r < p.rows)
      static_cast<T*>(p.y)[((first_row + r) * p.heads + head) * p.c + at] = FromFloat<T>(sum);
    __syncthreads();
  }
}

// y_n = Σ_c x_c w_nc. grid: tiles of kWarps · kTerms rows of w, heads, tiles of kRows rows.
template <typename T, bool kWhole, int kRows>
__global__ void __launch_bounds__(kThreads) SumColumns(HeadLinear p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t head = blockIdx.y;
  const std::int64_t first_n = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * kTerms;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.z) * kRows;
  LetNextBegin();
  AwaitEarlier();
  if (first_n >= p.n) return;
  const T* const w = static_cast<const T*>(p.w) + head * p.n * p.c;
  float y[kTerms][kRows] = {};
  for (std::int64_t c = lane * 8; c < p.c; c += kColumns) {
    float of_w[kTerms][8];
#pragma unroll
    for (int i = 0; i < kTerms; ++i) Load8<T, kWhole>(w + min(first_n + i, p.n - 1) * p.c, c, p.c, of_w[i]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = min(first_row + r, p.rows - 1);
      float of_x[8];
      Load8<T, kWhole>(static_cast<const T*>(p.x) + (row * p.heads + head) * p.x_width, c, p.c, of_x);
#pragma unroll
      for (int i = 0; i < kTerms; ++i) {
#pragma unroll
        for (int e = 0; e < 8; ++e) y[i][r] += of_x[e] * of_w[i][e];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = y[i][r];
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      const bool is_mine = lane == (i * kRows + r) % kWarp;
      if (is_mine && first_n + i < p.n && first_row + r < p.rows)
        static_cast<T*>(p.y)[((first_row + r) * p.heads + head) * p.n + first_n + i] = FromFloat<T>(sum);
    }
  }
}

template <typename T, bool kWhole, int kRows>
void Multiply(const HeadLinear& p, cudaStream_t stream) {
  const auto up = [](std::int64_t a, std::int64_t b) { return static_cast<unsigned>((a + b - 1) / b); };
  const unsigned tiles = p.transposed ? up(p.c, kColumns) : up(p.n, kWarps * kTerms);
  const dim3 grid(tiles, static_cast<unsigned>(p.heads), up(p.rows, kRows));
  const auto kernel = p.transposed ? SumRows<T, kWhole, kRows> : SumColumns<T, kWhole, kRows>;
  Launch(p.rows <= kMostEarlyRows, kernel, grid, kThreads, 0, stream, p);
}

template <typename T>
void MultiplyAny(const HeadLinear& p, cudaStream_t stream) {
  const auto bits =
      reinterpret_cast<std::uintptr_t>(p.w) | (p.transposed ? 0 : reinterpret_cast<std::uintptr_t>(p.x));
  const bool whole = bits % 16 == 0 && p.c % 8 == 0 && (p.transposed || p.x_width % 8 == 0);
  if (whole) {
    p.rows == 1 ? Multiply<T, true, 1>(p, stream) : Multiply<T, true, kMostRows>(p, stream);
  } else {
    p.rows == 1 ? Multiply<T, false, 1>(p, stream) : Multiply<T, false, kMostRows>(p, stream);
  }
}

}  // namespace

void LaunchHeadLinear(const HeadLinear& linear, cudaStream_t stream) {
  switch (linear.dtype) {
    case DType::kBF16:
      MultiplyAny<__nv_bfloat16>(linear, stream);
      break;
    case DType::kF16:
      MultiplyAny<__half>(linear, stream);
      break;
    default:
      MultiplyAny<float>(linear, stream);
  }
}

}  // namespace engine::backend::cuda

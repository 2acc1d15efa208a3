// A block is one warp, which makes 16 columns of y for 8 or 16 rows, all of their terms. As one accumulator takes them one after
// the other, what keeps memory busy is not many warps a column but the many steps of each warp that are on their way: they go
// by cp.async through a ring in shared memory, which nobody else waits for.
#include "engine/backend/cuda/kernels/ordered_product.h"

#include "engine/backend/cuda/kernels/copy_async.cuh"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kColumns = 16;
constexpr int kTileRows = 8;
constexpr int kStep = 32;  // terms that a stage of the ring has
constexpr int kPitch =
    kStep + 8;  // elements between rows of a stage, so that matrices are read without conflicts
constexpr int kStages = 12;
constexpr int kUnits = kStep / 8;  // of 16 bytes, in a row of a stage

template <typename T, typename Made, int kTiles>
struct OrderedWarp {
  static constexpr int kRows = kTiles * kTileRows;
  static constexpr int kStageElements = (kColumns + kRows) * kPitch;

  const FewRows& p;
  T* ring;
  std::int64_t column, row;  // the first ones here
  int lane;

  __device__ __forceinline__ T* WeightsOf(int stage) const { return ring + stage * kStageElements; }
  __device__ __forceinline__ T* RowsOf(int stage) const { return WeightsOf(stage) + kColumns * kPitch; }

  // Rows [first, …) of a matrix [count, terms], terms of a step; zeros where there are none.
  template <int kCount>
  __device__ __forceinline__ void Fetch(const void* matrix, std::int64_t first, std::int64_t count,
                                        std::int64_t step, T* to) const {
#pragma unroll
    for (int i = lane; i < kCount * kUnits; i += kWarp) {
      const std::int64_t at = first + i / kUnits;
      const std::int64_t term = step * kStep + i % kUnits * 8;
      const bool there = at < count && term < p.terms;
      const T* const from = static_cast<const T*>(matrix) + (there ? at * p.terms + term : 0);
      CopyAsync(to + i / kUnits * kPitch + i % kUnits * 8, from, there);
    }
  }
  __device__ __forceinline__ void FetchWeights(std::int64_t step, int stage) const {
    Fetch<kColumns>(p.w, column, p.columns, step, WeightsOf(stage));
  }
  __device__ __forceinline__ void FetchRows(std::int64_t step, int stage) const {
    Fetch<kRows>(p.x, row, p.rows, step, RowsOf(stage));
  }

  __device__ __forceinline__ void Add(int stage, float (&sums)[kTiles][4]) const {
    const T* const w = WeightsOf(stage) + (lane % 16) * kPitch + lane / 16 * 8;
    const T* const x = RowsOf(stage) + (lane % 8) * kPitch + lane / 8 * 8;
    std::uint32_t b[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) LoadMatrices<false>(b[t], x + t * kTileRows * kPitch);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[4];
      LoadMatrices<false>(a, w + 16 * half);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) MultiplyTile(T(), sums[t], a, b[t][2 * half], b[t][2 * half + 1]);
    }
  }

  __device__ __forceinline__ void Write(const float (&sums)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t y_row = row + kTileRows * t + lane % 4 * 2 + i % 2;
        const std::int64_t y_column = column + lane / 4 + i / 2 * 8;
        if (y_row >= p.rows || y_column >= p.columns) continue;
        const std::int64_t at = y_row * p.columns + y_column;
        float sum = sums[t][i];
        if (p.bias != nullptr) sum += ToFloat(static_cast<const T*>(p.bias)[y_column]);
        if (p.c != nullptr) sum += ToFloat(static_cast<const Made*>(p.c)[at]);
        static_cast<Made*>(p.y)[at] = FromFloat<Made>(sum);
      }
    }
  }
};

// grid: tiles of rows, of columns.
template <typename T, typename Made, int kTiles>
__global__ void __launch_bounds__(kWarp) MultiplyInOrder(FewRows p) {
  using Warp = OrderedWarp<T, Made, kTiles>;
  __shared__ __align__(16) T ring[kStages * Warp::kStageElements];
  const Warp of = {p, ring, static_cast<std::int64_t>(blockIdx.y) * kColumns,
                   static_cast<std::int64_t>(blockIdx.x) * Warp::kRows, static_cast<int>(threadIdx.x)};
  const std::int64_t steps = (p.terms + kStep - 1) / kStep;
  LetNextBegin();
  if (!p.w_stays) AwaitEarlier();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) of.FetchWeights(stage, stage);
  if (p.w_stays) AwaitEarlier();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    of.FetchRows(stage, stage);
    EndCopyGroup();  // the first group has the weights of all of them, which have been under way for longer
  }
  float sums[kTiles][4] = {};
  int stage = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncwarp();
    of.Add(stage, sums);
    const int freed = stage == 0 ? kStages - 1 : stage - 1;  // all lanes are done with it
    const std::int64_t next = step + kStages - 1;
    if (next < steps) {
      of.FetchWeights(next, freed);
      of.FetchRows(next, freed);
    }
    EndCopyGroup();
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  WaitForCopies<0>();
  of.Write(sums);
}

template <typename T, typename Made, int kTiles>
void LaunchTiles(const FewRows& p, cudaStream_t stream) {
  constexpr int kRows = kTiles * kTileRows;
  const dim3 grid(static_cast<unsigned>((p.rows + kRows - 1) / kRows),
                  static_cast<unsigned>((p.columns + kColumns - 1) / kColumns));
  Launch(p.rows <= kMostEarlyRows, MultiplyInOrder<T, Made, kTiles>, grid, kWarp, 0, stream, p);
}

template <typename T, typename Made>
void LaunchOf(const FewRows& p, cudaStream_t stream) {
  if (p.rows <= kTileRows) {
    LaunchTiles<T, Made, 1>(p, stream);
  } else {
    LaunchTiles<T, Made, 2>(p, stream);
  }
}

template <typename T>
void LaunchOfInput(const FewRows& p, cudaStream_t stream) {
  if (p.made == DType::kF32) {
    LaunchOf<T, float>(p, stream);
  } else {
    LaunchOf<T, T>(p, stream);
  }
}

__global__ void CountUnequalKernel(const std::uint16_t* __restrict__ a, const std::uint16_t* __restrict__ b,
                                   std::int64_t numbers, std::uint32_t* __restrict__ count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::uint32_t unequal = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numbers;
       i += stride)
    unequal += a[i] != b[i] ? 1 : 0;
  if (unequal > 0) atomicAdd(count, unequal);
}

}  // namespace

void CountUnequal(const void* a, const void* b, std::int64_t bytes, std::uint32_t* count,
                  cudaStream_t stream) {
  constexpr int kBlocks = 1024;
  constexpr int kThreads = 256;
  CountUnequalKernel<<<kBlocks, kThreads, 0, stream>>>(
      static_cast<const std::uint16_t*>(a), static_cast<const std::uint16_t*>(b), bytes / 2, count);
}

void LaunchOrderedProduct(const FewRows& product, cudaStream_t stream) {
  if (product.dtype == DType::kBF16) {
    LaunchOfInput<__nv_bfloat16>(product, stream);
  } else {
    LaunchOfInput<__half>(product, stream);
  }
}

}  // namespace engine::backend::cuda

// A block is one warp, which makes 16 columns of y for 8 or 16 rows, all of their terms. As one accumulator takes them one after
// the other, what keeps memory busy is not many warps a column but the many steps of each warp that are on their way: they go
// by cp.async through a ring in shared memory, which nobody else waits for.
#include "engine/backend/cuda/kernels/ordered_product.h"

#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/tiles.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kColumns = 16;
constexpr int kTileRows = 8;
constexpr int kStep = 64;  // terms that a stage of the ring has
constexpr int kPitch =
    kStep + 8;  // elements between rows of a stage, so that matrices are read without conflicts
constexpr int kStages = 8;
constexpr int kUnits = kStep / 8;            // of 16 bytes, in a row of a stage
constexpr int kRowsAtOnce = kWarp / kUnits;  // that the lanes copy a unit each of

// Rows of a matrix [count, terms] on their way into the ring, from `first` on; zeros where there are none.
template <typename T, int kCount>
struct RowStream {
  const T* from;       // this lane's unit of its first row
  std::int64_t apart;  // elements between its rows
  int rows;            // of its rows, how many there are
  int terms;           // behind its unit, of a row

  __device__ __forceinline__ RowStream(const void* matrix, std::int64_t first, std::int64_t count,
                                       std::int64_t all_terms) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = lane / kUnits;
    const int term = lane % kUnits * 8;
    const std::int64_t left = count - first - row;
    rows =
        left <= 0 ? 0 : static_cast<int>(min(std::int64_t{kCount}, (left + kRowsAtOnce - 1) / kRowsAtOnce));
    terms = static_cast<int>(all_terms) - term;
    from = static_cast<const T*>(matrix) + (rows > 0 ? (first + row) * all_terms + term : 0);
    apart = kRowsAtOnce * all_terms;
  }
  // The next step's terms; `to`: the stage's first row.
  __device__ __forceinline__ void Fetch(T* to) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    T* const at = to + lane / kUnits * kPitch + lane % kUnits * 8;
#pragma unroll
    for (int i = 0; i < kCount / kRowsAtOnce; ++i) {
      const bool there = i < rows && terms > 0;
      CopyAsync(at + i * kRowsAtOnce * kPitch, there ? from + i * apart : from, there);
    }
    terms -= kStep;
    if (terms > 0) from += kStep;
  }
};

// Adds the products of a stage: `a` [16, kStep] and `b` [8 · kTiles, kStep].
template <typename T, int kTiles>
__device__ __forceinline__ void AddStage(const T* a, const T* b, float (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* const w = a + (lane % 16) * kPitch + lane / 16 * 8;
  const T* const x = b + (lane % 8) * kPitch + lane / 8 * 8;
  std::uint32_t of_w[kStep / 16][4];
  std::uint32_t of_x[kTiles][kStep / 32][4];
#pragma unroll
  for (int i = 0; i < kStep / 16; ++i) LoadMatrices<false>(of_w[i], w + 16 * i);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < kStep / 32; ++i) LoadMatrices<false>(of_x[t][i], x + t * kTileRows * kPitch + 32 * i);
  }
#pragma unroll
  for (int i = 0; i < kStep / 16; ++i) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      MultiplyTile(T(), sums[t], of_w[i], of_x[t][i / 2][i % 2 * 2], of_x[t][i / 2][i % 2 * 2 + 1]);
  }
}

// Rows `row` and columns `column` on of y.
template <typename T, typename Made, int kTiles>
__device__ __forceinline__ void Write(const FewRows& p, std::int64_t row, std::int64_t column,
                                      const float (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
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

// grid: tiles of rows, of columns.
template <typename T, typename Made, int kTiles>
__global__ void __launch_bounds__(kWarp) MultiplyInOrder(FewRows p) {
  constexpr int kRows = kTiles * kTileRows;
  constexpr int kStage = (kColumns + kRows) * kPitch;  // elements
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const ring = reinterpret_cast<T*>(shared);
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * kColumns;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  const int steps = static_cast<int>((p.terms + kStep - 1) / kStep);
  RowStream<T, kColumns> weights(p.w, column, p.columns, p.terms);
  RowStream<T, kRows> rows(p.x, row, p.rows, p.terms);
  LetNextBegin();
  if (!p.w_stays) AwaitEarlier();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) weights.Fetch(ring + stage * kStage);
  if (p.w_stays) AwaitEarlier();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    rows.Fetch(ring + stage * kStage + kColumns * kPitch);
    EndCopyGroup();  // the first group has the weights of all of them, which have been under way for longer
  }
  float sums[kTiles][4] = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<kStages - 2>();
    __syncwarp();
    T* const freed = ring + (stage == 0 ? kStages - 1 : stage - 1) * kStage;  // all lanes are done with it
    weights.Fetch(freed);
    rows.Fetch(freed + kColumns * kPitch);
    EndCopyGroup();
    const T* const at = ring + stage * kStage;
    AddStage<T, kTiles>(at, at + kColumns * kPitch, sums);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  WaitForCopies<0>();
  Write<T, Made, kTiles>(p, row, column, sums);
}

template <typename T, typename Made, int kTiles>
void LaunchTiles(const FewRows& p, cudaStream_t stream) {
  constexpr int kRows = kTiles * kTileRows;
  const dim3 grid(static_cast<unsigned>((p.rows + kRows - 1) / kRows),
                  static_cast<unsigned>((p.columns + kColumns - 1) / kColumns));
  constexpr int kBytes = kStages * (kColumns + kRows) * kPitch * static_cast<int>(sizeof(T));
  Launch(p.rows <= kMostEarlyRows, MultiplyInOrder<T, Made, kTiles>, grid, kWarp, kBytes, stream, p);
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

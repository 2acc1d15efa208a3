#include "engine/backend/cuda/kernels/elementwise.h"

#include "engine/backend/cuda/kernels/activations.cuh"
#include "engine/backend/cuda/kernels/column_sums.cuh"
#include "engine/backend/cuda/kernels/drawn.cuh"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/elementwise.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = kElementwiseThreads;

struct Sum {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const { out[0] = in[0] + in[1]; }
};

template <bool kExact, bool kTanh>
struct Gelu {
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    float derivative;
    GeluOf<kExact, kTanh>(in[0], &out[0], &derivative);
  }
};
// kAgain: the value too.
template <bool kExact, bool kTanh, bool kAgain>
struct GeluGrad {
  __device__ void operator()(const float (&in)[2], float (&out)[kAgain ? 2 : 1]) const {
    float value;
    float derivative;
    GeluOf<kExact, kTanh>(in[0], &value, &derivative);
    out[0] = in[1] * derivative;
    if constexpr (kAgain) out[1] = value;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    BiasAddKernel(std::int64_t elements, std::int64_t columns, const T* x, const T* bias, T* y) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (at >= elements) return;
  std::int64_t column;
  Divide(at, columns, &column);
  if (at + 8 <= elements) {
    float a[8];
    float b[8];
    Unpack8(LoadPack8Streaming(x + at), a);
    if (columns % 8 == 0) {
      Load8(bias + column, b);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        b[i] = ToFloat(bias[column]);
        column = column + 1 == columns ? 0 : column + 1;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] += b[i];
    Store8(y + at, a);
  } else {
    for (std::int64_t i = at; i < elements; ++i) {
      y[i] = FromFloat<T>(ToFloat(x[i]) + ToFloat(bias[column]));
      column = column + 1 == columns ? 0 : column + 1;
    }
  }
}

// Adds what the warps of a block have summed of kBiasGradTile columns, eight a lane: the block's line of `partial`.
__device__ __forceinline__ void AddWarps(const float (&sums)[8], std::int64_t columns, float* partial) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ __align__(16) float shared[kWarps][kBiasGradTile];
  Store8(&shared[threadIdx.x / kWarp][threadIdx.x % kWarp * 8], sums);
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += shared[w][threadIdx.x];
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + threadIdx.x;
  if (column < columns) partial[blockIdx.y * columns + column] = total;
}

// A block adds a chunk of rows over 256 columns, a warp one row of them at a time, eight columns a lane and
// eight rows in flight.
template <typename T>
__global__ void __launch_bounds__(kThreads, kBiasGradBlocksPerMultiprocessor)
    BiasGradKernel(std::int64_t rows, std::int64_t columns, std::int64_t rows_per_chunk, const T* dy,
                   float* partial) {
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kInFlight = sizeof(T) == 2 ? 8 : 4;
  static_assert(kBiasGradTile == kWarp * 8 && kBiasGradTile == kThreads);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + lane * 8;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  float sums[8] = {};
  if (column < columns) {
    const T* from = dy + column;
    std::int64_t row = begin + warp;
    for (; row + (kInFlight - 1) * kWarps < end; row += kInFlight * kWarps) {
      Pack8<T> packs[kInFlight];
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) packs[r] = LoadPack8Streaming(from + (row + r * kWarps) * columns);
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) {
        float a[8];
        Unpack8(packs[r], a);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += a[i];
      }
    }
    for (; row < end; row += kWarps) {
      float a[8];
      Load8(from + row * columns, a);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += a[i];
    }
  }
  AddWarps(sums, columns, partial);
}

// The same cut for columns that are no multiple of 8: a thread to a column.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainBiasGradKernel(std::int64_t rows, std::int64_t columns, std::int64_t rows_per_chunk, const T* dy,
                        float* partial) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  float total = 0;
#pragma unroll 8
  for (std::int64_t row = begin; row < end; ++row) total += ToFloat(dy[row * columns + column]);
  partial[blockIdx.y * columns + column] = total;
}

// dx = dy · gelu'(x), y = gelu(x) and the sums of dx over a chunk of rows, cut as BiasGradKernel is.
template <typename T, bool kTanh>
__global__ void __launch_bounds__(kThreads, 3)
    GeluGradAgainKernel(std::int64_t rows, std::int64_t columns, std::int64_t rows_per_chunk, const T* x,
                        const T* dy, T* dx, T* y, float* partial) {
  constexpr bool kExact = sizeof(T) == 4;
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kInFlight = sizeof(T) == 2 ? 4 : 2;
  static_assert(kBiasGradTile == kWarp * 8 && kBiasGradTile == kThreads);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + lane * 8;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  float sums[8] = {};
  if (column < columns) {
    for (std::int64_t first = begin + warp; first < end; first += kInFlight * kWarps) {
      Pack8<T> packs[kInFlight][2];
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) {
        const std::int64_t row = first + r * kWarps;
        if (row >= end) break;
        packs[r][0] = LoadPack8Streaming(x + row * columns + column);
        packs[r][1] = LoadPack8Streaming(dy + row * columns + column);
      }
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) {
        const std::int64_t row = first + r * kWarps;
        if (row >= end) break;
        float a[8];
        float d[8];
        Unpack8(packs[r][0], a);
        Unpack8(packs[r][1], d);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float derivative;
          GeluOf<kExact, kTanh>(a[i], &a[i], &derivative);
          d[i] *= derivative;
        }
        const Pack8<T> rounded = ToPack8<T>(d);
        StorePack8(dx + row * columns + column, rounded);
        Store8(y + row * columns + column, a);
        Unpack8(rounded, d);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += d[i];
      }
    }
  }
  AddWarps(sums, columns, partial);
}

// The same cut for columns that are no multiple of 8: a thread to a column.
template <typename T, bool kTanh>
__global__ void __launch_bounds__(kThreads)
    PlainGeluGradAgainKernel(std::int64_t rows, std::int64_t columns, std::int64_t rows_per_chunk, const T* x,
                             const T* dy, T* dx, T* y, float* partial) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  float total = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * columns + column;
    float value;
    float derivative;
    GeluOf<sizeof(T) == 4, kTanh>(ToFloat(x[at]), &value, &derivative);
    const T rounded = FromFloat<T>(ToFloat(dy[at]) * derivative);
    dx[at] = rounded;
    y[at] = FromFloat<T>(value);
    total += ToFloat(rounded);
  }
  partial[blockIdx.y * columns + column] = total;
}

// elements: of y.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    SwigluKernel(std::int64_t elements, std::int64_t ffn, const T* x, T* y) {
  LetNextBegin();
  AwaitEarlier();
  const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (at >= elements) return;
  std::int64_t column;
  const std::int64_t row = Divide(at, ffn, &column);
  float gate[kWidth];
  float up[kWidth];
  LoadElements(x + row * 2 * ffn + column, gate);
  LoadElements(x + (row * 2 + 1) * ffn + column, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) gate[i] = gate[i] * Sigmoid<sizeof(T) == 4>(gate[i]) * up[i];
  StoreElements(y + at, gate);
}

template <typename T, int kWidth, bool kAgain>
__global__ void __launch_bounds__(kThreads)
    SwigluGradKernel(std::int64_t elements, std::int64_t ffn, const T* x, const T* dy, T* dx, T* y) {
  const std::int64_t at = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (at >= elements) return;
  std::int64_t column;
  const std::int64_t row = Divide(at, ffn, &column);
  const std::int64_t gate_at = row * 2 * ffn + column;
  float gate[kWidth];
  float up[kWidth];
  float d[kWidth];
  LoadElements(x + gate_at, gate);
  LoadElements(x + gate_at + ffn, up);
  LoadElements(dy + at, d);
  float value[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float s = Sigmoid<sizeof(T) == 4>(gate[i]);
    const float silu = gate[i] * s;
    value[i] = silu * up[i];
    up[i] = d[i] * up[i] * s * (1.0F + gate[i] * (1.0F - s));
    d[i] *= silu;
  }
  StoreElements(dx + gate_at, up);
  StoreElements(dx + gate_at + ffn, d);
  if constexpr (kAgain) StoreElements(y + at, value);
}

// What a kernel does with the elements that it draws for: index % kBlock = 0 begins a Philox block.
struct DropoutChange {
  static constexpr std::uint64_t kBlock = kDrawsOfBlock;
  const DropoutMask& mask;
  const Drawn& drawn;
  __device__ explicit DropoutChange(const Dropout& of) : mask(of.mask), drawn(of.mask.drawn) {}
  __device__ __forceinline__ float One(std::uint64_t iteration, std::uint64_t index, float x) const {
    return Dropped(mask, iteration, index, x);
  }
  __device__ __forceinline__ void Eight(std::uint64_t iteration, std::uint64_t index, float (&x)[8]) const {
    DropEight(mask, iteration, index / kBlock, x);
  }
};

struct JitterChange {
  static constexpr std::uint64_t kBlock = 4;
  const Jitter& jitter;
  const Drawn& drawn;
  __device__ explicit JitterChange(const Jitter& of) : jitter(of), drawn(of.drawn) {}
  __device__ __forceinline__ float ByWord(float x, std::uint32_t word) const {
    return x * (jitter.least + jitter.range * UniformFromWord(word));
  }
  __device__ __forceinline__ float One(std::uint64_t iteration, std::uint64_t index, float x) const {
    const auto words = Philox4x32(drawn.key, index / kBlock, iteration);
    const std::uint32_t low = index % 2 == 0 ? words[0] : words[1];
    const std::uint32_t high = index % 2 == 0 ? words[2] : words[3];
    return ByWord(x, index % 4 < 2 ? low : high);
  }
  __device__ __forceinline__ void Eight(std::uint64_t iteration, std::uint64_t index, float (&x)[8]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words = Philox4x32(drawn.key, index / kBlock + half, iteration);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[half * 4 + i] = ByWord(x[half * 4 + i], words[i]);
    }
  }
};

// kWidth consecutive elements of a row a thread.
template <typename T, int kWidth, typename Change, typename Of>
__global__ void __launch_bounds__(kThreads)
    DrawnKernel(std::int64_t elements, __grid_constant__ const Of of) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth;
  if (first >= elements) return;
  const Change change(of);
  const Drawn& drawn = change.drawn;
  float x[kWidth];
  LoadElements(static_cast<const T*>(of.x) + first, x);
  const LogicalDims::Dim& columns = drawn.index.dims[drawn.index.rank - 1];
  std::int64_t column;
  const std::int64_t row = Divide(first, columns.local, &column);
  const std::int64_t start = LogicalRow(drawn, row);
  const std::uint64_t iteration = IterationOf(drawn);
  if constexpr (kWidth == 8) {
    const std::int64_t at = LogicalIndex(columns, column);
    const auto index = static_cast<std::uint64_t>(start + at);
    if (at >= 0 && LogicalIndex(columns, column + 7) == at + 7 && index % Change::kBlock == 0) {
      change.Eight(iteration, index, x);
      StoreElements(static_cast<T*>(of.y) + first, x);
      return;
    }
  }
#pragma unroll 1
  for (int i = 0; i < kWidth; ++i) {
    const std::int64_t at = LogicalIndex(columns, column + i);
    const auto index = static_cast<std::uint64_t>(start + at);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {  // x stays in registers
      if (k == i) x[k] = at >= 0 ? change.One(iteration, index, x[k]) : 0.0F;
    }
  }
  StoreElements(static_cast<T*>(of.y) + first, x);
}

// y = dropout(x) and the sums of y over a chunk of rows, cut as GeluGradAgainKernel is. Rows are whole, and of a multiple of
// eight columns.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    DropoutSumsKernel(std::int64_t rows, std::int64_t rows_per_chunk, __grid_constant__ const Dropout of,
                      float* partial) {
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kInFlight = sizeof(T) == 2 ? 4 : 2;
  static_assert(kBiasGradTile == kWarp * 8 && kBiasGradTile == kThreads);
  const Drawn& drawn = of.mask.drawn;
  const std::int64_t columns = drawn.index.dims[drawn.index.rank - 1].local;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + lane * 8;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  const std::uint64_t iteration = IterationOf(drawn);
  const auto* x = static_cast<const T*>(of.x) + column;
  auto* y = static_cast<T*>(of.y) + column;
  float sums[8] = {};
  if (column < columns) {
    for (std::int64_t first = begin + warp; first < end; first += kInFlight * kWarps) {
      Pack8<T> packs[kInFlight];
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) {
        const std::int64_t row = first + r * kWarps;
        if (row >= end) break;
        packs[r] = LoadPack8Streaming(x + row * columns);
      }
#pragma unroll
      for (int r = 0; r < kInFlight; ++r) {
        const std::int64_t row = first + r * kWarps;
        if (row >= end) break;
        float a[8];
        Unpack8(packs[r], a);
        DropEight(of.mask, iteration, static_cast<std::uint64_t>(LogicalRow(drawn, row) + column) / 8, a);
        const Pack8<T> rounded = ToPack8<T>(a);
        StorePack8(y + row * columns, rounded);
        Unpack8(rounded, a);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += a[i];
      }
    }
  }
  AddWarps(sums, columns, partial);
}

// The same cut for all other rows: a thread to a column.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainDropoutSumsKernel(std::int64_t rows, std::int64_t rows_per_chunk, __grid_constant__ const Dropout of,
                           float* partial) {
  const Drawn& drawn = of.mask.drawn;
  const LogicalDims::Dim& dim = drawn.index.dims[drawn.index.rank - 1];
  const std::int64_t columns = dim.local;
  const std::int64_t column = std::int64_t{blockIdx.x} * kBiasGradTile + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_per_chunk;
  const std::int64_t end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  const std::uint64_t iteration = IterationOf(drawn);
  const std::int64_t logical = LogicalIndex(dim, column);
  float total = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row * columns + column;
    const auto index = static_cast<std::uint64_t>(LogicalRow(drawn, row) + logical);
    const float value =
        logical < 0 ? 0.0F : Dropped(of.mask, iteration, index, ToFloat(static_cast<const T*>(of.x)[at]));
    const T rounded = FromFloat<T>(value);
    static_cast<T*>(of.y)[at] = rounded;
    total += ToFloat(rounded);
  }
  partial[blockIdx.y * columns + column] = total;
}

template <typename T, bool kTanh>
void LaunchGeluGradOf(std::int64_t elements, const void* x, const void* dy, void* dx, void* y,
                      cudaStream_t stream) {
  constexpr bool kExact = sizeof(T) == 4;
  if (y == nullptr) {
    LaunchElementwise<T, 2, 1>(elements, {x, dy}, {dx}, GeluGrad<kExact, kTanh, false>(), stream);
  } else {
    LaunchElementwise<T, 2, 2>(elements, {x, dy}, {dx, y}, GeluGrad<kExact, kTanh, true>(), stream);
  }
}

template <typename T, int kWidth>
void LaunchSwigluGradOf(std::int64_t elements, std::int64_t ffn, const void* x, const void* dy, void* dx,
                        void* y, cudaStream_t stream) {
  const unsigned blocks = ElementwiseBlocks(elements, kWidth);
  const auto* in = static_cast<const T*>(x);
  const auto* d = static_cast<const T*>(dy);
  if (y == nullptr) {
    SwigluGradKernel<T, kWidth, false>
        <<<blocks, kThreads, 0, stream>>>(elements, ffn, in, d, static_cast<T*>(dx), nullptr);
  } else {
    SwigluGradKernel<T, kWidth, true>
        <<<blocks, kThreads, 0, stream>>>(elements, ffn, in, d, static_cast<T*>(dx), static_cast<T*>(y));
  }
}

std::int64_t ElementsOf(const LogicalDims& index) {
  std::int64_t elements = 1;
  for (int dim = 0; dim < index.rank; ++dim) elements *= index.dims[dim].local;
  return elements;
}

template <typename Change, typename Of>
void LaunchDrawn(const Of& of, const LogicalDims& index, cudaStream_t stream) {
  const std::int64_t elements = ElementsOf(index);
  if (elements == 0) return;
  const bool wide = index.dims[index.rank - 1].local % 8 == 0;
  WithElementType(of.dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = wide ? DrawnKernel<T, 8, Change, Of> : DrawnKernel<T, 1, Change, Of>;
    kernel<<<ElementwiseBlocks(elements, wide ? 8 : 1), kThreads, 0, stream>>>(elements, of);
  });
}

}  // namespace

void LaunchAdd(DType dtype, std::int64_t elements, const void* a, const void* b, void* y,
               cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    LaunchElementwise<decltype(element), 2, 1>(elements, {a, b}, {y}, Sum(), stream);
  });
}

void LaunchBiasAdd(DType dtype, std::int64_t rows, std::int64_t columns, const void* x, const void* bias,
                   void* y, cudaStream_t stream) {
  const std::int64_t elements = rows * columns;
  if (elements == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    BiasAddKernel<T><<<ElementwiseBlocks(elements, 8), kThreads, 0, stream>>>(
        elements, columns, static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<T*>(y));
  });
}

void LaunchBiasGrad(DType dtype, std::int64_t rows, std::int64_t columns, const void* dy, float* d_bias,
                    bool accumulate, float* partial, cudaStream_t stream) {
  const BiasGradGrid grid = MakeBiasGradGrid(rows, columns);
  const dim3 blocks(static_cast<unsigned>(grid.tiles), static_cast<unsigned>(grid.chunks));
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    if (rows == 0) return;
    const auto kernel = columns % 8 == 0 ? BiasGradKernel<T> : PlainBiasGradKernel<T>;
    kernel<<<blocks, kThreads, 0, stream>>>(rows, columns, grid.rows_per_chunk, static_cast<const T*>(dy),
                                            partial);
  });
  ColumnSums sums{.partial = partial, .lines = grid.chunks, .sums = 1, .columns = columns};
  sums.totals[0] = d_bias;
  sums.accumulate = accumulate ? 1 : 0;
  AddLines(sums, stream);
}

void LaunchGelu(DType dtype, bool tanh_form, std::int64_t elements, const void* x, void* y,
                cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr bool kExact = sizeof(T) == 4;
    if (tanh_form) {
      LaunchElementwise<T, 1, 1>(elements, {x}, {y}, Gelu<kExact, true>(), stream);
    } else {
      LaunchElementwise<T, 1, 1>(elements, {x}, {y}, Gelu<kExact, false>(), stream);
    }
  });
}

void LaunchGeluGrad(DType dtype, bool tanh_form, std::int64_t elements, const void* x, const void* dy,
                    void* dx, void* y, cudaStream_t stream) {
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    tanh_form ? LaunchGeluGradOf<T, true>(elements, x, dy, dx, y, stream)
              : LaunchGeluGradOf<T, false>(elements, x, dy, dx, y, stream);
  });
}

void LaunchGeluGradAgain(DType dtype, bool tanh_form, std::int64_t rows, std::int64_t columns, const void* x,
                         const void* dy, void* dx, void* y, float* d_bias, bool accumulate, float* partial,
                         cudaStream_t stream) {
  const BiasGradGrid grid = MakeShortGrid(rows, columns);
  const dim3 blocks(static_cast<unsigned>(grid.tiles), static_cast<unsigned>(grid.chunks));
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    if (rows == 0) return;
    const auto wide = tanh_form ? GeluGradAgainKernel<T, true> : GeluGradAgainKernel<T, false>;
    const auto plain = tanh_form ? PlainGeluGradAgainKernel<T, true> : PlainGeluGradAgainKernel<T, false>;
    const auto kernel = columns % 8 == 0 ? wide : plain;
    kernel<<<blocks, kThreads, 0, stream>>>(rows, columns, grid.rows_per_chunk, static_cast<const T*>(x),
                                            static_cast<const T*>(dy), static_cast<T*>(dx),
                                            static_cast<T*>(y), partial);
  });
  ColumnSums sums{.partial = partial, .lines = grid.chunks, .sums = 1, .columns = columns};
  sums.totals[0] = d_bias;
  sums.accumulate = accumulate ? 1 : 0;
  AddLines(sums, stream);
}

void LaunchSwiglu(DType dtype, std::int64_t rows, std::int64_t ffn, const void* x, void* y,
                  cudaStream_t stream) {
  const std::int64_t elements = rows * ffn;
  if (elements == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    const auto kernel = ffn % 8 == 0 ? SwigluKernel<T, 8> : SwigluKernel<T, 1>;
    Launch(elements <= kMostEarlyElements, kernel, ElementwiseBlocks(elements, ffn % 8 == 0 ? 8 : 1),
           kThreads, 0, stream, elements, ffn, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void LaunchSwigluGrad(DType dtype, std::int64_t rows, std::int64_t ffn, const void* x, const void* dy,
                      void* dx, void* y, cudaStream_t stream) {
  const std::int64_t elements = rows * ffn;
  if (elements == 0) return;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    ffn % 8 == 0 ? LaunchSwigluGradOf<T, 8>(elements, ffn, x, dy, dx, y, stream)
                 : LaunchSwigluGradOf<T, 1>(elements, ffn, x, dy, dx, y, stream);
  });
}

void LaunchDropout(const Dropout& dropout, cudaStream_t stream) {
  LaunchDrawn<DropoutChange>(dropout, dropout.mask.drawn.index, stream);
}

void LaunchDropoutGradBias(const Dropout& dropout, float* d_bias, bool accumulate, float* partial,
                           cudaStream_t stream) {
  const LogicalDims& index = dropout.mask.drawn.index;
  const std::int64_t columns = index.dims[index.rank - 1].local;
  const std::int64_t rows = ElementsOf(index) / columns;
  const BiasGradGrid grid = MakeShortGrid(rows, columns);
  const dim3 blocks(static_cast<unsigned>(grid.tiles), static_cast<unsigned>(grid.chunks));
  WithElementType(dropout.dtype, [&](auto element) {
    using T = decltype(element);
    if (rows == 0) return;
    const bool wide = columns % 8 == 0 && HasWholeRows(index);
    const auto kernel = wide ? DropoutSumsKernel<T> : PlainDropoutSumsKernel<T>;
    kernel<<<blocks, kThreads, 0, stream>>>(rows, grid.rows_per_chunk, dropout, partial);
  });
  ColumnSums sums{.partial = partial, .lines = grid.chunks, .sums = 1, .columns = columns};
  sums.totals[0] = d_bias;
  sums.accumulate = accumulate ? 1 : 0;
  AddLines(sums, stream);
}

void LaunchJitter(const Jitter& jitter, cudaStream_t stream) {
  LaunchDrawn<JitterChange>(jitter, jitter.drawn.index, stream);
}

}  // namespace engine::backend::cuda

#include "engine/backend/cuda/kernels/fp8.cuh"
#include "engine/backend/cuda/kernels/norm_grad.cuh"
#include "engine/backend/cuda/profile/quantize_grid.h"

namespace engine::backend::cuda {
namespace {

constexpr int kMaxThreads = 512;

// What a thread does with eight numbers of a row: writes them, keeps them in the strip, notes their abs-max.
struct RowQuantizer {
  Fp8Output out;
  Strip strip;
  std::int64_t columns;
  float scale;
  float abs_max = 0;

  __device__ RowQuantizer(const Fp8Output& output, void* shared, std::int64_t width, int strip_rows)
      : out(output),
        strip{static_cast<std::uint32_t*>(shared), static_cast<int>(StripPitch(width) / 4), strip_rows / 16},
        columns(width),
        scale(output.state[kFp8Scale]) {}

  __device__ __forceinline__ void Put8(std::int64_t row, int row_in_strip, int column, const float (&x)[8]) {
    abs_max = AbsMax8(abs_max, x);
    const uint2 eight =
        out.format == DType::kE4M3 ? Quantized8<__NV_E4M3>(x, scale) : Quantized8<__NV_E5M2>(x, scale);
    *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(out.q) + row * columns + column) = eight;
    strip.Put8(row_in_strip, column, eight);
  }

  // The whole block. The strip may be put anew after the next barrier.
  __device__ __forceinline__ void StoreTransposed(std::int64_t first_row, std::int64_t rows) const {
    __syncthreads();
    const auto in_strip = static_cast<int>(min(rows - first_row, std::int64_t{strip.groups} * 16));
    strip.StoreTransposed(static_cast<std::uint8_t*>(out.qt) + first_row, rows, static_cast<int>(columns),
                          in_strip);
  }
};

// Over the kWarps warps that have a row together. `shared` holds kWarps numbers of each team.
template <int kWarps>
__device__ __forceinline__ float TeamSum(float x, float* shared) {
  x = WarpSum(x);
  if constexpr (kWarps == 1) return x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int team = warp / kWarps;
  const auto meet = [&] {  // barrier 0 is __syncthreads
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kWarps * kWarp) : "memory");
  };
  meet();
  if (threadIdx.x % kWarp == 0) shared[warp] = x;
  meet();
  float sum = shared[team * kWarps];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum += shared[team * kWarps + i];
  return sum;
}

// A block to a strip, a team of kWarps warps to a row of it at a time, kVectors times eight columns a thread.
template <typename T, int kWarps, int kVectors, bool kLayer>
__global__ void __launch_bounds__(kMaxThreads)
    NormQuantizeKernel(__grid_constant__ const Norm norm, __grid_constant__ const Fp8Output out,
                       int strip_rows) {
  constexpr int kThreads = kWarps * kWarp;  // of a row
  extern __shared__ uint4 strip_words[];
  __shared__ float shared[kMaxThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int teams = static_cast<int>(blockDim.x) / kThreads;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * strip_rows;
  RowQuantizer quantizer(out, strip_words, norm.columns, strip_rows);

  for (int r = static_cast<int>(threadIdx.x) / kThreads; r < strip_rows; r += teams) {
    const std::int64_t row = first_row + r;
    if (row >= norm.rows) break;
    NormRow<T, kWarps, kVectors, kLayer, true, false, false>(
        norm, row, thread, [&](float x) { return TeamSum<kWarps>(x, shared); },
        [&](int column, float(&eight)[8]) {
          Unpack8(ToPack8<T>(eight), eight);
          quantizer.Put8(row, r, column, eight);
        });
  }
  quantizer.StoreTransposed(first_row, norm.rows);
  RaiseAbsMax(quantizer.abs_max, out.state);
}

// The grid stays for all strips.
template <typename T, typename Cut, int kThreads, bool kLayer, bool kBias>
__global__ void __launch_bounds__(kThreads, 1)
    NormGradQuantizeKernel(__grid_constant__ const NormGrad grad, __grid_constant__ const Fp8Output out,
                           int strip_rows) {
  using Rows = NormGradRows<T, Cut, kLayer, true, kBias, false, false>;
  static_assert(Cut::kRows == 1 && (Cut::kStages == 0 || Cut::kStages == 2));
  extern __shared__ uint4 strip_words[];  // the strip, then the ring
  __shared__ typename Rows::Shared shared;
  Rows rows(grad, shared,
            reinterpret_cast<std::uint8_t*>(strip_words) + strip_rows * StripPitch(grad.columns));
  RowQuantizer quantizer(out, strip_words, grad.columns, strip_rows);

  const std::int64_t step = std::int64_t{gridDim.x} * strip_rows;
  std::int64_t strip = std::int64_t{blockIdx.x} * strip_rows;
  rows.Begin([&](int) { return strip; });
  for (; strip < grad.rows; strip += step) {
    const auto in_strip = static_cast<int>(min(grad.rows - strip, std::int64_t{strip_rows}));
    for (int r = 0; r < in_strip; ++r) {
      const std::int64_t next = r + 1 < in_strip ? strip + r + 1 : strip + step;
      rows.Turn(strip + r, next, next,
                [&](std::int64_t row, int column, const float(&x)[8]) { quantizer.Put8(row, r, column, x); });
    }
    quantizer.StoreTransposed(strip, grad.rows);
    __syncthreads();
  }
  RaiseAbsMax(quantizer.abs_max, out.state);
  rows.Finish();
}

std::int64_t DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <typename Kernel>
void AllowShared(Kernel kernel, std::int64_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                       cudaSharedmemCarveoutMaxShared);
}

// Long strips make the pieces of transposed rows long; but every multiprocessor should have two.
std::int64_t StripRowsOf(const Norm& norm) {
  const std::int64_t limit =
      DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kReservedBytesPerBlock;
  std::int64_t rows = 64;
  while (rows > kFp8Multiple && rows * StripPitch(norm.columns) > limit) rows /= 2;
  if (rows == 64 && norm.rows < 2 * 64 * kMultiprocessors) rows = 32;
  return rows;
}

template <typename T, int kWarps, int kVectors>
void LaunchStrips(const Norm& norm, const Fp8Output& out, cudaStream_t stream) {
  const std::int64_t strip_rows = StripRowsOf(norm);
  const std::int64_t bytes = strip_rows * StripPitch(norm.columns);
  const int threads = 2 * (bytes + kReservedBytesPerBlock) <= kSharedBytes ? kMaxThreads / 2 : kMaxThreads;
  const auto blocks = static_cast<unsigned>(CeilDivide(norm.rows, strip_rows));
  const auto kernel = norm.beta != nullptr ? NormQuantizeKernel<T, kWarps, kVectors, true>
                                           : NormQuantizeKernel<T, kWarps, kVectors, false>;
  AllowShared(kernel, bytes);
  kernel<<<blocks, threads, bytes, stream>>>(norm, out, static_cast<int>(strip_rows));
}

// Teams as LaunchNorm has them, for the same bits.
template <typename T>
void LaunchNormQuantizeOf(const Norm& norm, const Fp8Output& out, cudaStream_t stream) {
  const std::int64_t pieces = norm.columns / 8;
  if (pieces <= 2 * kWarp) {
    LaunchStrips<T, 1, 2>(norm, out, stream);
  } else if (pieces <= 3 * kWarp) {
    LaunchStrips<T, 1, 3>(norm, out, stream);
  } else if (pieces <= 4 * kWarp) {
    LaunchStrips<T, 1, 4>(norm, out, stream);
  } else if (pieces <= 5 * kWarp) {
    LaunchStrips<T, 1, 5>(norm, out, stream);
  } else if (pieces <= 6 * kWarp) {
    LaunchStrips<T, 1, 6>(norm, out, stream);
  } else if (pieces <= 8 * kWarp) {
    LaunchStrips<T, 1, 8>(norm, out, stream);
  } else if (pieces <= 4 * 4 * kWarp) {
    LaunchStrips<T, 4, 4>(norm, out, stream);
  } else if (pieces <= 8 * 4 * kWarp) {
    LaunchStrips<T, 8, 4>(norm, out, stream);
  } else {
    LaunchStrips<T, 8, 8>(norm, out, stream);
  }
}

template <typename T, typename Cut, int kThreads>
void LaunchGradStrips(const NormGrad& grad, const Fp8Output& out, const NormGradQuantizeGrid& grid,
                      cudaStream_t stream) {
  const bool bias = grad.d_bias != nullptr;
  const auto kernel = grad.mean != nullptr ? (bias ? NormGradQuantizeKernel<T, Cut, kThreads, true, true>
                                                   : NormGradQuantizeKernel<T, Cut, kThreads, true, false>)
                                           : (bias ? NormGradQuantizeKernel<T, Cut, kThreads, false, true>
                                                   : NormGradQuantizeKernel<T, Cut, kThreads, false, false>);
  AllowShared(kernel, grid.shared_bytes);
  kernel<<<static_cast<unsigned>(grid.blocks), grid.threads, grid.shared_bytes, stream>>>(
      grad, out, static_cast<int>(grid.strip_rows));
}

template <typename T>
void LaunchNormGradQuantizeOf(const NormGrad& grad, const Fp8Output& out, const NormGradQuantizeGrid& grid,
                              cudaStream_t stream) {
  grid.vectors == 1 ? LaunchGradStrips<T, NarrowCut, kNormGradNarrowThreads>(grad, out, grid, stream)
                    : LaunchGradStrips<T, MiddleCut, kNormGradMaxThreads>(grad, out, grid, stream);
}

void QuantizeRows(DType dtype, std::int64_t rows, std::int64_t columns, const void* x, const Fp8Output& out,
                  cudaStream_t stream) {
  LaunchQuantize({.dtype = dtype, .rows = rows, .columns = columns, .a = x, .out = out}, stream);
}

}  // namespace

void LaunchNormQuantize(const Norm& norm, const Fp8Output& out, cudaStream_t stream) {
  if (norm.rows == 0) return;
  if (!NormFitsStrip(norm.columns)) {
    LaunchNorm(norm, stream);
    QuantizeRows(norm.dtype, norm.rows, norm.columns, norm.y, out, stream);
  } else if (norm.dtype == DType::kBF16) {
    LaunchNormQuantizeOf<__nv_bfloat16>(norm, out, stream);
  } else {
    LaunchNormQuantizeOf<__half>(norm, out, stream);
  }
}

void LaunchNormGradQuantize(const NormGrad& grad, const Fp8Output& out, cudaStream_t stream) {
  const NormGradQuantizeGrid grid = MakeNormGradQuantizeGrid(grad.rows, grad.columns);
  if (grid.strip_rows == 0 ||
      grid.shared_bytes + kReservedBytesPerBlock > DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
    LaunchNormGrad(grad, stream);
    QuantizeRows(grad.dtype, grad.rows, grad.columns, grad.dx, out, stream);
    return;
  }
  if (grad.rows > 0) {
    grad.dtype == DType::kBF16 ? LaunchNormGradQuantizeOf<__nv_bfloat16>(grad, out, grid, stream)
                               : LaunchNormGradQuantizeOf<__half>(grad, out, grid, stream);
  }
  AddNormGradLines(grad, grid.blocks, stream);
}

}  // namespace engine::backend::cuda

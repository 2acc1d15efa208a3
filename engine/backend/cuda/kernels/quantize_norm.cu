#include "engine/backend/cuda/kernels/column_sums.cuh"
#include "engine/backend/cuda/kernels/fp8.cuh"
#include "engine/backend/cuda/kernels/norm.cuh"
#include "engine/backend/cuda/kernels/quantize_grid.h"

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
  const int columns = static_cast<int>(norm.columns);
  const float per_column = 1.0F / static_cast<float>(columns);
  const auto* gamma = static_cast<const T*>(norm.gamma);
  const auto* beta = static_cast<const T*>(norm.beta);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * strip_rows;
  RowQuantizer quantizer(out, strip_words, columns, strip_rows);

  for (int r = static_cast<int>(threadIdx.x) / kThreads; r < strip_rows; r += teams) {
    const std::int64_t row = first_row + r;
    if (row >= norm.rows) break;
    const auto* x = static_cast<const T*>(norm.x) + row * columns;
    const auto* branch = static_cast<const T*>(norm.branch) + row * columns;
    auto* sum = static_cast<T*>(norm.sum) + row * columns;
    Pack8<T> held[kVectors];
    Pack8<T> added[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * kThreads + thread) * 8;
      if (column < columns) held[v] = LoadPack8Streaming(x + column);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * kThreads + thread) * 8;
      if (column < columns) added[v] = LoadPack8Streaming(branch + column);
    }
    float total = 0;
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
      if constexpr (kLayer) {
        Unpack8(held[v], a);
#pragma unroll
        for (int i = 0; i < 8; ++i) total += a[i];
      }
    }
    const float mean = kLayer ? TeamSum<kWarps>(total, shared) * per_column : 0.0F;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if ((v * kThreads + thread) * 8 >= columns) continue;
      float a[8];
      Unpack8(held[v], a);
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += (a[i] - mean) * (a[i] - mean);
    }
    const float rstd = rsqrtf(TeamSum<kWarps>(squares, shared) * per_column + norm.epsilon);
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
      Unpack8(ToPack8<T>(a), a);
      quantizer.Put8(row, r, column, a);
    }
    if (thread == 0) {
      if constexpr (kLayer) norm.mean[row] = mean;
      norm.rstd[row] = rstd;
    }
  }
  quantizer.StoreTransposed(first_row, norm.rows);
  RaiseAbsMax(quantizer.abs_max, out.state);
}

// The grid stays for all strips. A turn is a row for each of `teams` teams of threads, which stand side by
// side on it, kVectors times eight columns a thread, whose sums over the rows stay in registers. Rows of
// later turns are copied ahead into a ring of `stages` turns; a thread reads only what it copied itself, so
// that a turn has one barrier, that of the two means.
// The bound keeps the registers within what MakeNormGradQuantizeGrid counts with.
template <typename T, int kVectors, bool kLayer, bool kBias>
__global__ void __launch_bounds__(kVectors == 1 ? 2 * 320 : kNormGradMaxThreads)
    NormGradQuantizeKernel(__grid_constant__ const NormGrad grad, __grid_constant__ const Fp8Output out,
                           int strip_rows, int stages, int teams) {
  constexpr int kTensors = 3;  // x, dy, residual
  constexpr int kMeans = kLayer ? 2 : 1;
  constexpr int kLanesPerMean = kWarp / kMeans;
  constexpr int kSums = 1 + (kLayer ? 1 : 0) + (kBias ? 1 : 0);
  extern __shared__ uint4 strip_words[];  // the strip, then the ring [stages, teams, kTensors, D]
  __shared__ float means[2][kNormGradMaxThreads / kWarp][kMeans];

  const int columns = static_cast<int>(grad.columns);
  const int threads = static_cast<int>(blockDim.x) / teams;  // of a team
  const int team = static_cast<int>(threadIdx.x) / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int turns_per_strip = strip_rows / teams;  // rows are a multiple of 16, so a turn is whole or empty
  T* const ring = reinterpret_cast<T*>(reinterpret_cast<std::uint8_t*>(strip_words) +
                                       strip_rows * StripPitch(grad.columns));
  RowQuantizer quantizer(out, strip_words, columns, strip_rows);

  struct Turn {              // of this block
    std::int64_t first_row;  // of the strip
    int turn;
  };
  const auto next = [&](Turn& at) {
    if (++at.turn == turns_per_strip) at = {at.first_row + std::int64_t{gridDim.x} * strip_rows, 0};
  };
  const auto row_of = [&](const Turn& at) { return at.first_row + at.turn * teams + team; };
  const auto slot = [&](int stage) { return ring + (stage * teams + team) * kTensors * columns; };
  const auto fetch = [&](const Turn& at, int stage) {
    const std::int64_t row = row_of(at);
    if (row >= grad.rows) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * threads + thread) * 8;
      if (column >= columns) continue;
      const std::int64_t from = row * columns + column;
      T* const to = slot(stage) + column;
      CopyAsync16(to, static_cast<const T*>(grad.x) + from);
      CopyAsync16(to + columns, static_cast<const T*>(grad.dy) + from);
      CopyAsync16(to + 2 * columns, static_cast<const T*>(grad.residual) + from);
    }
  };
  float next_mean = 0;
  float next_rstd = 0;
  const auto fetch_statistics = [&](const Turn& at) {
    const std::int64_t row = row_of(at);
    if (row >= grad.rows) return;
    if constexpr (kLayer) next_mean = grad.mean[row];
    next_rstd = grad.rstd[row];
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

  Turn ahead = {std::int64_t{blockIdx.x} * strip_rows, 0};
  Turn now = ahead;
  for (int stage = 0; stage + 1 < stages; ++stage) {
    fetch(ahead, stage);
    next(ahead);
    EndCopyGroup();
  }
  fetch_statistics(now);

  int stage = 0;
  int buffer = 0;
  const float per_column = 1.0F / static_cast<float>(columns);
  while (now.first_row < grad.rows) {
    fetch(ahead, stage == 0 ? stages - 1 : stage - 1);
    next(ahead);
    EndCopyGroup();
    const Turn at = now;
    const std::int64_t row = row_of(at);
    next(now);
    const float mean = next_mean;
    const float rstd = next_rstd;
    fetch_statistics(now);
    WaitForStage<kNormGradQuantizeMaxStages>(stages);

    if (row < grad.rows) {       // the same for all teams
      float terms[kMeans] = {};  // Σ dy·γ·x̂, Σ dy·γ
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = (v * threads + thread) * 8;
        if (column >= columns) continue;
        float a[8];
        float d[8];
        float g[8];
        Load8(slot(stage) + column, a);
        Load8(slot(stage) + columns + column, d);
        Unpack8(gamma[v], g);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float normed = (a[i] - mean) * rstd;
          d_gamma[v][i] += d[i] * normed;
          if constexpr (kLayer) d_beta[v][i] += d[i];
          const float scaled = d[i] * g[i];
          terms[0] += scaled * normed;
          if constexpr (kLayer) terms[1] += scaled;
        }
      }
      const float warp_sum = WarpSums(terms);
      if (lane % kLanesPerMean == 0) means[buffer][warp][lane / kLanesPerMean] = warp_sum;
      __syncthreads();
      float sums[kMeans] = {};
      for (int w = 0; w < threads / kWarp; ++w) {
#pragma unroll
        for (int i = 0; i < kMeans; ++i) sums[i] += means[buffer][team * (threads / kWarp) + w][i];
      }
      const float mean_normed = sums[0] * per_column;
      const float mean_plain = kLayer ? sums[kMeans - 1] * per_column : 0.0F;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int column = (v * threads + thread) * 8;
        if (column >= columns) continue;
        float a[8];
        float d[8];
        float g[8];
        Load8(slot(stage) + column, a);
        Load8(slot(stage) + columns + column, d);
        Unpack8(gamma[v], g);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float normed = (a[i] - mean) * rstd;
          const float centred = kLayer ? d[i] * g[i] - mean_plain : d[i] * g[i];
          a[i] = rstd * (centred - normed * mean_normed);
        }
        Load8(slot(stage) + 2 * columns + column, d);
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] += d[i];
        const Pack8<T> rounded = ToPack8<T>(a);
        StorePack8(static_cast<T*>(grad.dx) + row * columns + column, rounded);
        Unpack8(rounded, a);
        if constexpr (kBias) {
#pragma unroll
          for (int i = 0; i < 8; ++i) d_bias[v][i] += a[i];
        }
        quantizer.Put8(row, at.turn * teams + team, column, a);
      }
    }
    if (at.turn + 1 == turns_per_strip) quantizer.StoreTransposed(at.first_row, grad.rows);
    stage = stage + 1 == stages ? 0 : stage + 1;
    buffer ^= 1;
  }
  RaiseAbsMax(quantizer.abs_max, out.state);

  // The first team adds the others' sums, which lie where the strip was: [teams − 1, kSums, D].
  __syncthreads();
  float* const others = reinterpret_cast<float*>(strip_words);
  float* const line = grad.partial + std::int64_t{blockIdx.x} * kSums * columns;
  const auto finish = [&](int sum, int column, float(&own)[8]) {
    float* const at = others + ((team - 1) * kSums + sum) * columns + column;
    if (team > 0 && column < columns) Store8(at, own);
    __syncthreads();
    if (team > 0 || column >= columns) return;
    for (int t = 0; t < teams - 1; ++t) {
      float other[8];
      Load8(others + (t * kSums + sum) * columns + column, other);
#pragma unroll
      for (int i = 0; i < 8; ++i) own[i] += other[i];
    }
    Store8(line + sum * columns + column, own);
  };
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * threads + thread) * 8;
    finish(0, column, d_gamma[v]);
    if constexpr (kLayer) finish(1, column, d_beta[v]);
    if constexpr (kBias) finish(kSums - 1, column, d_bias[v]);
  }
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

template <typename T, int kVectors>
void LaunchGradStrips(const NormGrad& grad, const Fp8Output& out, const NormGradQuantizeGrid& grid,
                      cudaStream_t stream) {
  const bool bias = grad.d_bias != nullptr;
  const auto kernel = grad.mean != nullptr ? (bias ? NormGradQuantizeKernel<T, kVectors, true, true>
                                                   : NormGradQuantizeKernel<T, kVectors, true, false>)
                                           : (bias ? NormGradQuantizeKernel<T, kVectors, false, true>
                                                   : NormGradQuantizeKernel<T, kVectors, false, false>);
  AllowShared(kernel, grid.shared_bytes);
  kernel<<<static_cast<unsigned>(grid.blocks), grid.teams * grid.team_threads, grid.shared_bytes, stream>>>(
      grad, out, static_cast<int>(grid.strip_rows), grid.stages, grid.teams);
}

template <typename T>
void LaunchNormGradQuantizeOf(const NormGrad& grad, const Fp8Output& out, const NormGradQuantizeGrid& grid,
                              cudaStream_t stream) {
  grid.vectors == 1   ? LaunchGradStrips<T, 1>(grad, out, grid, stream)
  : grid.vectors == 2 ? LaunchGradStrips<T, 2>(grad, out, grid, stream)
                      : LaunchGradStrips<T, 4>(grad, out, grid, stream);
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

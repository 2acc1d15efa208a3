// A block makes 16 columns of y for all rows; its eight warps share the terms, 32 at a time in turns, and add up at the end.
// Tensor cores multiply: w gives the 16 rows of their tiles, x the 8 columns. Which terms of 32 a tile's place stands for is
// free where both operands agree, so that a thread reads eight terms of a row that lie one behind the other, 16 bytes, and
// uses them in two tiles of 16 terms.
//
// Where w holds a gate and an up projection, a block makes 8 columns of each: the low and the high half of its tiles' 16 rows.
//
// Where the product is of a norm, each block makes the norm of all rows, in shared memory: they are short, and lie in the second
// cache. Meanwhile the block's first weights are on their way.
#include "engine/backend/cuda/kernels/few_rows.h"

#include "engine/backend/cuda/kernels/activations.cuh"
#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/mma.cuh"
#include "engine/backend/cuda/kernels/norm.cuh"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kColumns = 16;
constexpr int kStep = 32;  // terms
constexpr int kAhead = 4;  // steps whose weights are on their way
constexpr int kTileRows = 8;

// Eight terms of a row; zeros where there are none. Weights are read once: they
// go by the first cache.
template <bool kOnce, typename T>
__device__ __forceinline__ uint4 EightTerms(const T* row, std::int64_t term, bool there) {
  if (!there) return {0, 0, 0, 0};
  const auto* const at = reinterpret_cast<const uint4*>(row + term);
  if constexpr (kOnce) return __ldcs(at);
  return *at;  // not by the read-only path: another kernel may write it until
               // AwaitEarlier()
}

__device__ __forceinline__ void PrefetchToL2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Applies the activation to one number. A block has few of them, so that the exact forms cost nothing.
__device__ __forceinline__ float Activated(graph::Activation activation, float x) {
  float value = 0;
  float derivative;
  const auto of = [&]<graph::Activation kKind>() { ActivationOf<kKind, true>(x, &value, &derivative); };
  switch (activation) {
    using enum graph::Activation;
    case kRelu:
      of.template operator()<kRelu>();
      break;
    case kSilu:
      of.template operator()<kSilu>();
      break;
    case kQuickGelu:
      of.template operator()<kQuickGelu>();
      break;
    case kTanh:
      of.template operator()<kTanh>();
      break;
    case kSigmoid:
      of.template operator()<kSigmoid>();
      break;
    case kGeluTanh:
      of.template operator()<kGeluTanh>();
      break;
    case kGeluErf:
      of.template operator()<kGeluErf>();
      break;
  }
  return value;
}

// Elements from one row in shared memory to the next: 64 bytes more than a row
// has, so that lanes which read 64 bytes of each of two rows meet no bank twice
// where rows are of whole lines.
__device__ __forceinline__ int NormedStride(const FewRows& p) { return static_cast<int>(p.terms) + 32; }

// A block's dynamic shared memory holds the rows after the norm, gamma, and beta: so many bytes.
std::size_t NormedBytes(const FewRows& p, std::int64_t element_bytes) {
  return static_cast<std::size_t>((p.rows * (p.terms + 32) + p.terms * (p.beta != nullptr ? 2 : 1)) *
                                  element_bytes);
}

template <typename T>
__device__ __forceinline__ void FetchGain(const FewRows& p, T* gain) {
  const int terms = static_cast<int>(p.terms);
  for (int i = 8 * static_cast<int>(threadIdx.x); i < terms; i += 8 * kThreads) {
    CopyAsync16(gain + i, static_cast<const T*>(p.gamma) + i);
    if (p.beta != nullptr) CopyAsync16(gain + terms + i, static_cast<const T*>(p.beta) + i);
  }
}

// The sum over the `warps` warps that share a row, the first of them `first`,
// for each of their threads. All threads of the block take part; `shared` may
// be used again behind the next barrier.
__device__ __forceinline__ float SumOfWarps(float x, int first, int warps, float* shared) {
  x = WarpSum(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += shared[first + i];
  return sum;
}

// The norm of each row of x to `rows`. The block's warps share a row, or have
// one each where there are as many.
template <typename T, bool kLayer>
__device__ __forceinline__ void NormFewRows(const FewRows& p, const T* gain, T* rows) {
  __shared__ float shared[2][kWarps];
  const int terms = static_cast<int>(p.terms);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = p.rows == 1 ? kWarps : p.rows == 2 ? kWarps / 2 : p.rows <= 4 ? kWarps / 4 : 1;
  const int first_warp = warp / warps * warps;
  const int start = 8 * (static_cast<int>(threadIdx.x) - first_warp * kWarp);
  const int step = 8 * warps * kWarp;
  const float per_term = 1.0F / static_cast<float>(terms);
  for (int first = 0; first < p.rows; first += kWarps / warps) {
    const int row = first + warp / warps;
    const int end = row < p.rows ? terms : 0;
    const T* const from = static_cast<const T*>(p.x) + static_cast<std::int64_t>(row) * terms;
    T* const to = rows + row * NormedStride(p);
    float total = 0;
#pragma unroll 4
    for (int i = start; i < end; i += step) {
      const Pack8<T> eight = LoadPack8(from + i);
      float a[8];
      Unpack8(eight, a);
#pragma unroll
      for (int n = 0; n < 8; ++n) total += kLayer ? a[n] : a[n] * a[n];
      StorePack8(to + i, eight);
    }
    total = SumOfWarps(total, first_warp, warps, shared[0]);
    float mean = 0;
    if constexpr (kLayer) {
      mean = total * per_term;
      total = 0;
      for (int i = start; i < end; i += step) {  // what this thread wrote
        float a[8];
        Load8(to + i, a);
#pragma unroll
        for (int n = 0; n < 8; ++n) total += (a[n] - mean) * (a[n] - mean);
      }
      total = SumOfWarps(total, first_warp, warps, shared[1]);
    }
    const float rstd = rsqrtf(total * per_term + p.epsilon);
    for (int i = start; i < end; i += step) {
      float a[8];
      float scale[8];
      float shift[8] = {};
      Load8(to + i, a);
      Load8(gain + i, scale);
      AddGainOffset(p.gain_offset, scale);
      if constexpr (kLayer) Load8(gain + terms + i, shift);
#pragma unroll
      for (int n = 0; n < 8; ++n)
        a[n] = NormOutput<kLayer>(Normed<kLayer>(a[n], mean, rstd), scale[n], shift[n]);
      Store8(to + i, a);
    }
    __syncthreads();
  }
}

// kTiles: of 8 rows.
template <typename T, typename Made, int kTiles, bool kGated, bool kNormed>
__global__ void __launch_bounds__(kThreads) MultiplyFewRows(FewRows p) {
  __shared__ float parts[kWarps][kColumns][kTiles * kTileRows + 1];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = lane / 4;
  constexpr int kMade = kGated ? kColumns / 2 : kColumns;  // columns of y
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kMade;
  const std::int64_t column = first_column + row;
  const std::int64_t in_step = lane % 4 * 8;
  const T* const w = static_cast<const T*>(p.w) + column * p.terms;
  const T* const x = static_cast<const T*>(p.x) + row * p.terms;
  const bool low = column < p.columns;
  const bool high = kGated ? low : column + 8 < p.columns;
  const T* const w_high = w + (kGated ? p.columns : 8) * p.terms;
  float sums[kTiles][4] = {};
  const std::int64_t steps = (p.terms + kStep - 1) / kStep;
  uint4 a[kAhead][2];
  const auto term_of = [&](std::int64_t first, int i) {
    return (first + std::int64_t{kWarps} * i) * kStep + in_step;
  };
  const auto read_weights = [&](std::int64_t first, int i) {
    const std::int64_t term = term_of(first, i);
    const bool there = term < p.terms;
    a[i][0] = EightTerms<true>(w, term, there && low);
    a[i][1] = EightTerms<true>(w_high, term, there && high);
  };
  const auto read_first_weights = [&] {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) read_weights(warp, i);
  };
  extern __shared__ __align__(16) unsigned char dynamic[];
  T* const normed = reinterpret_cast<T*>(dynamic);
  T* const gain = normed + p.rows * NormedStride(p);
  LetNextBegin();
  // With 16 rows the registers that it takes cost more than it gains.
  const bool reads_early = kTiles == 1 && p.w_stays;
  if (reads_early) {
    read_first_weights();
  } else {
    // Towards the second cache only: where parameters are kept in shards, a
    // kernel may be writing them.
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t term = term_of(warp, i);
      if (term < p.terms && low) PrefetchToL2(w + term);
      if (term < p.terms && high) PrefetchToL2(w_high + term);
    }
  }
  if (kNormed && p.gain_stays) FetchGain(p, gain);
  AwaitEarlier();
  if (!reads_early) read_first_weights();
  if constexpr (kNormed) {
    if (!p.gain_stays) FetchGain(p, gain);
    EndCopyGroup();
    WaitForCopies<0>();  // for other threads behind the barriers of the norm
    if (p.beta != nullptr) {
      NormFewRows<T, true>(p, gain, normed);
    } else {
      NormFewRows<T, false>(p, gain, normed);
    }
  }
  for (std::int64_t first = warp; first < steps; first += std::int64_t{kWarps} * kAhead) {
    uint4 b[kAhead][kTiles];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t term = term_of(first, i);
      const bool there = term < p.terms;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int x_row = row + kTileRows * t;
        const bool is_row = there && x_row < p.rows;
        if constexpr (kNormed) {
          b[i][t] = EightTerms<false>(normed + x_row * NormedStride(p), term, is_row);
        } else {
          b[i][t] = EightTerms<false>(x + kTileRows * t * p.terms, term, is_row);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        MultiplyTile(T(), sums[t], {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y}, b[i][t].x, b[i][t].y);
        MultiplyTile(T(), sums[t], {a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w}, b[i][t].z, b[i][t].w);
      }
      // At once, so that as many steps are always on their way.
      read_weights(first + std::int64_t{kWarps} * kAhead, i);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int y_row = kTileRows * t + lane % 4 * 2;
    parts[warp][row][y_row] = sums[t][0];
    parts[warp][row][y_row + 1] = sums[t][1];
    parts[warp][row + 8][y_row] = sums[t][2];
    parts[warp][row + 8][y_row + 1] = sums[t][3];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kMade * kTiles * kTileRows; i += kThreads) {
    const int y_row = i / kMade;
    const int in_block = i % kMade;
    const std::int64_t y_column = first_column + in_block;
    if (y_row >= p.rows || y_column >= p.columns) continue;
    const auto sum_of = [&](int tile_row, std::int64_t bias_at) {
      float sum = 0;
#pragma unroll
      for (int part = 0; part < kWarps; ++part) sum += parts[part][tile_row][y_row];
      if (p.bias != nullptr) sum += ToFloat(static_cast<const T*>(p.bias)[bias_at]);
      return sum;
    };
    const std::int64_t at = y_row * p.columns + y_column;
    float sum = sum_of(in_block, y_column);
    if constexpr (kGated) {
      sum = Activated(*p.activation, sum) * sum_of(in_block + kMade, p.columns + y_column);
    } else {
      if (p.c != nullptr) sum += ToFloat(static_cast<const Made*>(p.c)[at]);
      if (p.activation.has_value()) {
        if (p.before_activation != nullptr)
          static_cast<Made*>(p.before_activation)[at] = FromFloat<Made>(sum);
        sum = Activated(*p.activation, sum);
      }
    }
    static_cast<Made*>(p.y)[at] = FromFloat<Made>(sum);
  }
}

template <typename T, typename Made, bool kGated, bool kNormed>
void LaunchOf(const FewRows& p, cudaStream_t stream) {
  constexpr int kMade = kGated ? kColumns / 2 : kColumns;
  const auto blocks = static_cast<unsigned>((p.columns + kMade - 1) / kMade);
  const auto kernel = p.rows <= kTileRows ? MultiplyFewRows<T, Made, 1, kGated, kNormed>
                                          : MultiplyFewRows<T, Made, 2, kGated, kNormed>;
  const std::size_t bytes = kNormed ? NormedBytes(p, sizeof(T)) : 0;
  constexpr std::size_t kAlwaysThere = 32768;
  if (bytes > kAlwaysThere)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  Launch(true, kernel, blocks, kThreads, bytes, stream, p);
}

template <typename T, typename Made, bool kGated>
void LaunchOfForm(const FewRows& p, cudaStream_t stream) {
  p.gamma != nullptr ? LaunchOf<T, Made, kGated, true>(p, stream)
                     : LaunchOf<T, Made, kGated, false>(p, stream);
}

template <typename T>
void LaunchOfInput(const FewRows& p, cudaStream_t stream) {
  if (p.gated) {
    LaunchOfForm<T, T, true>(p, stream);
  } else if (p.made == DType::kF32) {
    LaunchOfForm<T, float, false>(p, stream);
  } else {
    LaunchOfForm<T, T, false>(p, stream);
  }
}

}  // namespace

void LaunchFewRows(const FewRows& product, cudaStream_t stream) {
  static_assert(kMostFewRows == 2 * kTileRows);
  if (product.dtype == DType::kBF16) {
    LaunchOfInput<__nv_bfloat16>(product, stream);
  } else {
    LaunchOfInput<__half>(product, stream);
  }
}

}  // namespace engine::backend::cuda

#include "engine/backend/cuda/kernels/quantize.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "engine/backend/cuda/kernels/activations.cuh"
#include "engine/backend/cuda/kernels/column_sums.cuh"
#include "engine/backend/cuda/kernels/expert_rows.cuh"
#include "engine/backend/cuda/kernels/fp8.cuh"
#include "engine/backend/cuda/kernels/norm.cuh"
#include "engine/backend/cuda/profile/quantize_grid.h"
#include "engine/plan/control.h"

namespace engine::backend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = static_cast<int>(kQuantizeTileRows);
constexpr int kTileColumns = static_cast<int>(kQuantizeTileColumns);
constexpr int kPiecesPerRow = kTileColumns / 8;
constexpr int kRowsPerTurn = kThreads / kPiecesPerRow;
constexpr int kTurns = kTileRows / kRowsPerTurn;

// A function of kInputs numbers with kOutputs results, for each place of a tile.
struct CopyValue {
  static constexpr int kInputs = 1;
  static constexpr int kOutputs = 1;
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const { out[0] = in[0]; }
};
struct GeluValue {
  static constexpr int kInputs = 1;
  static constexpr int kOutputs = 1;
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    float derivative;
    GeluOf<false, true>(in[0], &out[0], &derivative);
  }
};
struct GeluGradValue {
  static constexpr int kInputs = 2;  // x, dy
  static constexpr int kOutputs = 1;
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    float value;
    float derivative;
    GeluOf<false, true>(in[0], &value, &derivative);
    out[0] = in[1] * derivative;
  }
};
struct SwigluValue {
  static constexpr int kInputs = 2;  // gate, up
  static constexpr int kOutputs = 1;
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] * Sigmoid<false>(in[0]) * in[1];
  }
};
struct SwigluGradValue {
  static constexpr int kInputs = 3;   // gate, up, dy
  static constexpr int kOutputs = 2;  // of gate, of up
  __device__ void operator()(const float (&in)[3], float (&out)[2]) const {
    const float s = Sigmoid<false>(in[0]);
    out[0] = in[2] * in[1] * s * (1.0F + in[0] * (1.0F - s));
    out[1] = in[2] * (in[0] * s);
  }
};

template <bool kLayer>
struct NormValue {
  static constexpr int kInputs = 1;
  static constexpr int kOutputs = 1;
  __device__ float operator()(float x, float gamma, float beta, float mean, float rstd) const {
    return NormOutput<kLayer>(Normed<kLayer>(x, mean, rstd), gamma, beta);
  }
};
template <typename Function>
inline constexpr bool kIsNorm =
    std::is_same_v<Function, NormValue<true>> || std::is_same_v<Function, NormValue<false>>;

// The scale that takes abs_max to the largest number of the format; `otherwise` where it is 0 or not finite.
__device__ __forceinline__ float ScaleFor(float abs_max, bool e4m3, float factor, float otherwise) {
  if (!(abs_max > 0 && abs_max <= FLT_MAX)) return otherwise;
  return fminf((e4m3 ? 448.0F : 57344.0F) / abs_max * factor, FLT_MAX);
}

__device__ __forceinline__ void SetScale(float* state, float scale) {
  state[kFp8Scale] = scale;
  state[kFp8InverseScale] = 1.0F / scale;
}

template <typename T, int kInputs>
struct Tiles {
  const T* in[kInputs];
  std::int64_t in_stride[kInputs];  // from row to row
  std::int64_t rows;
  std::int64_t columns;       // of one output
  std::int64_t column_tiles;  // the tiles of a row follow each other
  std::uint8_t* q;            // [rows, outputs, columns]
  std::uint8_t* qt;           // [outputs, columns, rows]
  float* state;
  const std::int32_t* last_group;  // of rows of experts
  bool current;                    // the state holds the abs-max alone
  float* partial;                  // [row tiles, columns]; only if kBias
  const T* gamma;                  // these only with a norm
  float gain_offset;
  const T* beta;
  const float* mean;
  const float* rstd;
};

// A block to a tile: a thread has eight columns of every sixteenth row, whose loads are in flight together.
template <typename T, __nv_fp8_interpretation_t kFormat, typename Function, bool kBias>
__global__ void __launch_bounds__(kThreads, 3) QuantizeKernel(Tiles<T, Function::kInputs> tiles) {
  constexpr int kInputs = Function::kInputs;
  constexpr int kOutputs = Function::kOutputs;
  constexpr int kAhead = kInputs == 1 ? kTurns : kInputs == 2 ? 4 : 2;
  static_assert(kTurns % kAhead == 0 && (!kBias || kOutputs == 1));
  __shared__ uint4 strip_words[kOutputs][kTileRows * kTileColumns / 16];
  __shared__ __align__(16) float sums[kBias ? kThreads / kWarp : 1][kTileColumns];

  const auto tile_row = static_cast<unsigned>(blockIdx.x / static_cast<unsigned>(tiles.column_tiles));
  const auto tile_column = static_cast<unsigned>(blockIdx.x % static_cast<unsigned>(tiles.column_tiles));
  const std::int64_t first_row = std::int64_t{tile_row} * kTileRows;
  const std::int64_t first_column = std::int64_t{tile_column} * kTileColumns;
  const int rows = static_cast<int>(min(tiles.rows - first_row, std::int64_t{kTileRows}));
  const int columns = static_cast<int>(min(tiles.columns - first_column, std::int64_t{kTileColumns}));
  const int own_row = static_cast<int>(threadIdx.x) / kPiecesPerRow;
  const int own_column = static_cast<int>(threadIdx.x) % kPiecesPerRow * 8;
  const bool inside = own_column < columns;
  const float scale = tiles.current ? ScaleFor(tiles.state[kFp8AbsMax], kFormat == __NV_E4M3, 1.0F, 1.0F)
                                    : tiles.state[kFp8Scale];
  if (tiles.current && blockIdx.x == 0 && threadIdx.x == 0) {  // for those that read q
    SetScale(tiles.state, scale);
    tiles.state[kFp8Format] = kFormat == __NV_E4M3 ? 0.0F : 1.0F;
  }
  if (tiles.last_group != nullptr && first_row >= EndOfRows(tiles.last_group)) return;
  float gamma[8] = {};
  float beta[8] = {};
  if constexpr (kIsNorm<Function>) {
    if (inside) {
      Load8(tiles.gamma + first_column + own_column, gamma);
      AddGainOffset(tiles.gain_offset, gamma);
      if (tiles.beta != nullptr) Load8(tiles.beta + first_column + own_column, beta);
    }
  }

  float abs_max = 0;
  float bias[8] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; turn += kAhead) {
    Pack8<T> packs[kAhead][kInputs];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int row = (turn + a) * kRowsPerTurn + own_row;
      if (row >= rows || !inside) continue;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) {
        packs[a][k] = LoadPack8Streaming(tiles.in[k] + (first_row + row) * tiles.in_stride[k] + first_column +
                                         own_column);
      }
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int row = (turn + a) * kRowsPerTurn + own_row;
      if (row >= rows || !inside) continue;
      float in[kInputs][8];
      float out[kOutputs][8];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) Unpack8(packs[a][k], in[k]);
      if constexpr (kIsNorm<Function>) {
        const float mean = tiles.mean != nullptr ? tiles.mean[first_row + row] : 0.0F;
        const float rstd = tiles.rstd[first_row + row];
#pragma unroll
        for (int i = 0; i < 8; ++i) out[0][i] = Function()(in[0][i], gamma[i], beta[i], mean, rstd);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float arguments[kInputs];
          float results[kOutputs];
#pragma unroll
          for (int k = 0; k < kInputs; ++k) arguments[k] = in[k][i];
          Function()(arguments, results);
#pragma unroll
          for (int k = 0; k < kOutputs; ++k) out[k][i] = results[k];
        }
      }
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) {
        if constexpr (!std::is_same_v<Function, CopyValue>) Unpack8(ToPack8<T>(out[k]), out[k]);
        if constexpr (kBias) {
#pragma unroll
          for (int i = 0; i < 8; ++i) bias[i] += out[k][i];
        }
        abs_max = AbsMax8(abs_max, out[k]);
        const uint2 eight = Quantized8<kFormat>(out[k], scale);
        const std::int64_t at =
            ((first_row + row) * kOutputs + k) * tiles.columns + first_column + own_column;
        if (tiles.q != nullptr) *reinterpret_cast<uint2*>(tiles.q + at) = eight;
        const Strip strip{reinterpret_cast<std::uint32_t*>(strip_words[k]), kTileColumns / 4, kTileRows / 16};
        strip.Put8(row, own_column, eight);
      }
    }
  }
  if constexpr (kBias) {  // a warp has two rows at a time
#pragma unroll
    for (int i = 0; i < 8; ++i) bias[i] += __shfl_xor_sync(kAllLanes, bias[i], kPiecesPerRow);
    if (threadIdx.x % kWarp < kPiecesPerRow) Store8(&sums[threadIdx.x / kWarp][own_column], bias);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kOutputs; ++k) {
    const Strip strip{reinterpret_cast<std::uint32_t*>(strip_words[k]), kTileColumns / 4, kTileRows / 16};
    strip.StoreTransposed(tiles.qt + (k * tiles.columns + first_column) * tiles.rows + first_row, tiles.rows,
                          columns, rows);
  }
  if constexpr (kBias) {
    const int column = static_cast<int>(threadIdx.x);
    if (column < columns) {
      float total = sums[0][column];
#pragma unroll
      for (int warp = 1; warp < kThreads / kWarp; ++warp) total += sums[warp][column];
      tiles.partial[tile_row * tiles.columns + first_column + column] = total;
    }
  }
  RaiseAbsMax(abs_max, tiles.state);
}

__global__ void Fp8UpdateKernel(std::int64_t tensors, float* states, float factor) {
  const std::int64_t tensor = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tensor >= tensors) return;
  float* const state = states + tensor * kFp8StateSize;
  SetScale(state, ScaleFor(state[kFp8AbsMax], state[kFp8Format] == 0, factor, state[kFp8Scale]));
  state[kFp8AbsMax] = 0;
}

__global__ void Fp8BoundKernel(bool e4m3, double bound, const double* control, float* state) {
  if (control != nullptr) bound *= control[plan::kLossScale] * control[plan::kLabelFactor];
  SetScale(state, ScaleFor(static_cast<float>(bound), e4m3, 1.0F, 1.0F));
  state[kFp8AbsMax] = 0;
  state[kFp8Format] = e4m3 ? 0.0F : 1.0F;
}

// The state's abs-max, which is 0 before, of pieces of eight numbers.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AbsMaxKernel(const T* x, std::int64_t pieces, std::int64_t columns, const std::int32_t* last_group,
                 float* state) {
  if (last_group != nullptr) pieces = min(pieces, EndOfRows(last_group) * columns / 8);
  constexpr int kAhead = 4;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  float abs_max = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; first < pieces;
       first += kAhead * step) {
    Pack8<T> packs[kAhead] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a * step < pieces) packs[a] = LoadPack8(x + (first + a * step) * 8);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      float eight[8];
      Unpack8(packs[a], eight);
      abs_max = AbsMax8(abs_max, eight);
    }
  }
  RaiseAbsMax(abs_max, state);
}

template <typename T>
void LaunchAbsMax(const Quantize& quantize, cudaStream_t stream) {
  cudaMemsetAsync(quantize.out.state, 0, kFp8StateSize * sizeof(float), stream);
  const std::int64_t pieces = quantize.rows * quantize.columns / 8;
  const std::int64_t blocks = std::min(CeilDivide(pieces, 4 * kThreads), 8 * kMultiprocessors);
  if (blocks == 0) return;
  AbsMaxKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(quantize.a), pieces, quantize.columns, quantize.last_group, quantize.out.state);
}

template <typename T, int kInputs>
Tiles<T, kInputs> MakeTiles(const Quantize& quantize) {
  const auto* a = static_cast<const T*>(quantize.a);
  const auto* b = static_cast<const T*>(quantize.b);
  Tiles<T, kInputs> tiles{.rows = quantize.rows,
                          .columns = quantize.columns,
                          .q = static_cast<std::uint8_t*>(quantize.out.q),
                          .qt = static_cast<std::uint8_t*>(quantize.out.qt),
                          .state = quantize.out.state,
                          .last_group = quantize.last_group,
                          .current = quantize.current,
                          .partial = quantize.partial,
                          .gamma = static_cast<const T*>(quantize.gamma),
                          .gain_offset = quantize.gain_offset,
                          .beta = static_cast<const T*>(quantize.beta),
                          .mean = quantize.mean,
                          .rstd = quantize.rstd};
  int inputs = 0;
  const auto add = [&](const T* from, std::int64_t stride) {
    tiles.in[inputs] = from;
    tiles.in_stride[inputs++] = stride;
  };
  if (quantize.source == Fp8Source::kSwigluGrad) tiles.columns /= 2;
  if (quantize.source == Fp8Source::kSwiglu || quantize.source == Fp8Source::kSwigluGrad) {
    add(a, 2 * tiles.columns);
    add(a + tiles.columns, 2 * tiles.columns);
  } else {
    add(a, tiles.columns);
  }
  if (quantize.b != nullptr) add(b, tiles.columns);
  tiles.column_tiles = CeilDivide(tiles.columns, kQuantizeTileColumns);
  return tiles;
}

template <typename T, typename Function, bool kBias>
void LaunchTiles(const Quantize& quantize, cudaStream_t stream) {
  const auto tiles = MakeTiles<T, Function::kInputs>(quantize);
  const auto blocks = static_cast<unsigned>(QuantizeLines(tiles.rows) * tiles.column_tiles);
  if (blocks == 0) return;
  const auto kernel = quantize.out.format == DType::kE4M3 ? QuantizeKernel<T, __NV_E4M3, Function, kBias>
                                                          : QuantizeKernel<T, __NV_E5M2, Function, kBias>;
  kernel<<<blocks, kThreads, 0, stream>>>(tiles);
}

template <typename T>
void LaunchSource(const Quantize& quantize, cudaStream_t stream) {
  const bool bias = quantize.d_bias != nullptr;
  if (quantize.current) LaunchAbsMax<T>(quantize, stream);
  switch (quantize.source) {
    case Fp8Source::kCopy:
      return bias ? LaunchTiles<T, CopyValue, true>(quantize, stream)
                  : LaunchTiles<T, CopyValue, false>(quantize, stream);
    case Fp8Source::kGelu:
      return LaunchTiles<T, GeluValue, false>(quantize, stream);
    case Fp8Source::kGeluGrad:
      return bias ? LaunchTiles<T, GeluGradValue, true>(quantize, stream)
                  : LaunchTiles<T, GeluGradValue, false>(quantize, stream);
    case Fp8Source::kSwiglu:
      return LaunchTiles<T, SwigluValue, false>(quantize, stream);
    case Fp8Source::kSwigluGrad:
      return LaunchTiles<T, SwigluGradValue, false>(quantize, stream);
    case Fp8Source::kNorm:
      return quantize.mean != nullptr ? LaunchTiles<T, NormValue<true>, false>(quantize, stream)
                                      : LaunchTiles<T, NormValue<false>, false>(quantize, stream);
  }
}

}  // namespace

void LaunchQuantize(const Quantize& quantize, cudaStream_t stream) {
  quantize.dtype == DType::kBF16 ? LaunchSource<__nv_bfloat16>(quantize, stream)
                                 : LaunchSource<__half>(quantize, stream);
  if (quantize.d_bias == nullptr) return;
  ColumnSums sums{.partial = quantize.partial,
                  .lines = QuantizeLines(quantize.rows),
                  .sums = 1,
                  .columns = quantize.columns};
  sums.totals[0] = quantize.d_bias;
  sums.accumulate = quantize.accumulate_bias ? 1 : 0;
  AddLines(sums, stream);
}

void LaunchFp8Update(std::int64_t tensors, float* states, int margin, cudaStream_t stream) {
  constexpr int kUpdateThreads = 128;
  if (tensors == 0) return;
  Fp8UpdateKernel<<<static_cast<unsigned>(CeilDivide(tensors, kUpdateThreads)), kUpdateThreads, 0, stream>>>(
      tensors, states, std::ldexp(1.0F, -margin));
}

void LaunchFp8Bound(DType format, double bound, const double* control, float* state, cudaStream_t stream) {
  Fp8BoundKernel<<<1, 1, 0, stream>>>(format == DType::kE4M3, bound, control, state);
}

}  // namespace engine::backend::cuda

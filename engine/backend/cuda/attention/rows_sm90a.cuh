// What attention's gradient does with rows, before and after its products.
#pragma once

#include "engine/backend/cuda/attention/sm90a.cuh"

namespace engine::backend::cuda::attention_sm90a {

// 64 rows of a warpgroup. Lanes of four trade what they have of four times eight columns, so that each writes 16 bytes.
template <typename T, int kSums>
__device__ __forceinline__ void StoreRows(const float (&d)[kSums], float scale, T* out, std::int64_t token,
                                          int rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  const int at = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + half * 8;
#pragma unroll
    for (int four = 0; four < kSums / 16; ++four) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = (four * 4 + i) * 4 + half * 2;
        pairs[i] = PairFromFloat(T(), d[from] * scale, d[from + 1] * scale);
      }
      // pairs[i] of lane l becomes pairs[l] of lane i.
      std::uint32_t low = at & 1 ? pairs[0] : pairs[1];
      std::uint32_t high = at & 1 ? pairs[2] : pairs[3];
      low = __shfl_xor_sync(kAllLanes, low, 1);
      high = __shfl_xor_sync(kAllLanes, high, 1);
      if (at & 1) {
        pairs[0] = low, pairs[2] = high;
      } else {
        pairs[1] = low, pairs[3] = high;
      }
      low = at & 2 ? pairs[0] : pairs[2];
      high = at & 2 ? pairs[1] : pairs[3];
      low = __shfl_xor_sync(kAllLanes, low, 2);
      high = __shfl_xor_sync(kAllLanes, high, 2);
      if (at & 2) {
        pairs[0] = low, pairs[1] = high;
      } else {
        pairs[2] = low, pairs[3] = high;
      }
      if (row < rows)
        *reinterpret_cast<uint4*>(out + row * token + four * 32 + at * 8) = {pairs[0], pairs[1], pairs[2],
                                                                             pairs[3]};
    }
  }
}

struct RowSumsParams {
  Common common;
  AttentionView o, d_o;
  LseView lse;
  float *lse2, *row_sums;
  int* turns;
  std::int64_t rows;  // B · tiles · kTile · H
};

// lse2 and row sums, and no turn taken: kE / 8 threads a row, rows of heads next to each other.
template <typename T, int kE, int kTile>
__global__ void RowSumsKernel(const __grid_constant__ RowSumsParams p) {
  constexpr int kLanes = kE / 8;
  const Common& c = p.common;
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool any = index < p.rows;
  const int head = static_cast<int>(index % c.heads);
  const std::int64_t token = index / c.heads;
  const int row = static_cast<int>(token % kTile);
  const int tile = static_cast<int>(token / kTile % c.tiles);
  const std::int64_t sample = token / kTile / c.tiles;
  const QueryTile t = TileOf<kTile>(c, tile);
  const bool valid = any && row < t.rows;
  const std::int64_t at = t.row + row;
  const int kv = head / c.group;
  float sum = 0;
  if (valid) {
    const auto load = [&](const AttentionView& view, float(&x)[8]) {
      const T* from = static_cast<const T*>(view.data) + sample * view.sample + at * view.token +
                      kv * view.kv_head + (head - kv * c.group) * view.head + lane * 8;
      Unpack8(*reinterpret_cast<const Pack8<T>*>(from), x);
    };
    float o[8];
    float d_o[8];
    load(p.o, o);
    load(p.d_o, d_o);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(o[i], d_o[i], sum);
  }
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(kAllLanes, sum, i);
  if (!any || lane != 0) return;
  const std::int64_t of_tile = (sample * c.heads + head) * c.tiles + tile;
  float lse = -INFINITY;
  if (valid) lse = p.lse.data[sample * p.lse.sample + at * p.lse.token + head * p.lse.head] * kLog2E;
  p.row_sums[of_tile * kTile + row] = sum;
  // A row that sees nothing has probabilities of exp(−∞).
  p.lse2[of_tile * kTile + row] = lse == -INFINITY ? INFINITY : lse;
  if (row == 0) p.turns[of_tile] = 0;
}

struct RoundSumsParams {
  Common common;
  const float* sums;
  float scale;
  AttentionView dq;
};

// dq of its sums, a block a tile of a head. Of a tile a warpgroup has 64 × 64, of its own queries or its own elements.
template <typename T, int kE, int kTile>
__global__ void __launch_bounds__(2 * kWarpgroup) RoundSumsKernel(const __grid_constant__ RoundSumsParams p) {
  static_assert(kTile * kE == 128 * 64);
  const Common& c = p.common;
  const int tile = static_cast<int>(blockIdx.x) % c.tiles;
  const int row_of_heads = static_cast<int>(blockIdx.x) / c.tiles;
  const int sample = row_of_heads / c.heads;
  const int head = row_of_heads - sample * c.heads;
  const int kv = head / c.group;
  const QueryTile t = TileOf<kTile>(c, tile);
  const int worker = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const float4* from =
      reinterpret_cast<const float4*>(p.sums + static_cast<std::int64_t>(blockIdx.x) * kTile * kE) +
      worker * 8 * kWarpgroup + thread;
  float d[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = __ldcs(from + i * kWarpgroup);
    d[4 * i] = four.x, d[4 * i + 1] = four.y, d[4 * i + 2] = four.z, d[4 * i + 3] = four.w;
  }
  const int row = kTile == 128 ? worker * 64 : 0;
  const int element = kTile == 128 ? 0 : worker * 64;
  T* out = static_cast<T*>(p.dq.data) + sample * p.dq.sample + kv * p.dq.kv_head +
           (head - kv * c.group) * p.dq.head + (t.row + row) * p.dq.token + element;
  StoreRows(d, p.scale, out, p.dq.token, t.rows - row);
}

struct SinkSumsParams {
  const void* sinks;
  float* d_sinks;
  const float *lse2, *row_sums;
  std::int64_t rows;  // of a head of a sample, with those behind the last one
  int batch, heads;
};

// A block a head: over its queries in a fixed order.
template <typename T>
__global__ void __launch_bounds__(kWarpgroup) SinkSumsKernel(const __grid_constant__ SinkSumsParams p) {
  __shared__ float of_warps[kWarpsOfGroup];
  const int head = static_cast<int>(blockIdx.x);
  const float sink = ToFloat(static_cast<const T*>(p.sinks)[head]) * kLog2E;
  float sum = 0;
  for (int sample = 0; sample < p.batch; ++sample) {
    const std::int64_t first = (static_cast<std::int64_t>(sample) * p.heads + head) * p.rows;
    for (std::int64_t row = threadIdx.x; row < p.rows; row += kWarpgroup)
      sum = fmaf(exp2f(sink - p.lse2[first + row]), p.row_sums[first + row], sum);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) p.d_sinks[head] -= of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3];
}

}  // namespace engine::backend::cuda::attention_sm90a

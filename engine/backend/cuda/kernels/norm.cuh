// What the norms share on the device.
#pragma once

#include "engine/backend/cuda/kernels/drawn.cuh"
#include "engine/backend/cuda/kernels/norm.h"
#include "engine/backend/cuda/kernels/vector.cuh"

namespace engine::backend::cuda {

// Eight numbers of gamma with the offset of the gain: exact where the offset is 0.
__device__ __forceinline__ void AddGainOffset(float offset, float (&gamma)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) gamma[i] += offset;
}

// The one form of a norm's output, so that a gradient kernel repeats the forward kernel's bits.
template <bool kLayer>
__device__ __forceinline__ float Normed(float x, float mean, float rstd) {
  return __fmul_rn(kLayer ? __fsub_rn(x, mean) : x, rstd);
}
template <bool kLayer>
__device__ __forceinline__ float NormOutput(float normed, float gamma, float beta) {
  return kLayer ? __fmaf_rn(normed, gamma, beta) : __fmul_rn(normed, gamma);
}

// Sums kCount (a power of two, at most 32) values over a warp, halving how many a lane holds at each step: 9
// shuffles for 8 values where one after the other takes 40. Lane l gets the sum of value l / (32 / kCount).
template <int kCount>
__device__ __forceinline__ float WarpSums(float (&values)[kCount]) {
  const int lane = threadIdx.x % kWarp;
  int held = kCount;
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    if (held == 1) {
      values[0] += __shfl_xor_sync(kAllLanes, values[0], distance);
      continue;
    }
    held /= 2;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= held) continue;
      const float give = upper ? values[i] : values[i + held];
      const float keep = upper ? values[i + held] : values[i];
      values[i] = keep + __shfl_xor_sync(kAllLanes, give, distance);
    }
  }
  return values[0];
}

// One row, in the registers of kWarps warps, of which this is thread `thread`: kVectors times eight columns a
// thread, so that each byte is read once. sum_of_row(x): the sum over those threads, for each of them;
// put(column, y) takes eight numbers of y, not yet rounded.
template <typename T, int kWarps, int kVectors, bool kLayer, bool kAdd, bool kPart, bool kDrop,
          typename SumOfRow, typename Put>
__device__ __forceinline__ void NormRow(const Norm& norm, std::int64_t row, int thread,
                                        const SumOfRow& sum_of_row, const Put& put) {
  constexpr int kThreads = kWarps * kWarp;
  const int columns = static_cast<int>(norm.columns);
  const std::int64_t start = row * columns;
  const auto* x = static_cast<const T*>(norm.x) + start;
  const auto* gamma = static_cast<const T*>(norm.gamma);
  const auto* beta = static_cast<const T*>(norm.beta);

  Pack8<T> held[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * kThreads + thread) * 8;
    if (column < columns) held[v] = LoadPack8Streaming(x + column);
  }
  if constexpr (kAdd) {
    const auto* branch = static_cast<const T*>(norm.branch) + start;
    const auto* bias = static_cast<const T*>(norm.bias);
    auto* sum = static_cast<T*>(norm.sum) + start;
    std::uint64_t first_eight = 0;  // of the row's elements in the whole tensor
    std::uint64_t iteration = 0;
    if constexpr (kDrop) {
      first_eight = static_cast<std::uint64_t>(LogicalRow(norm.dropout.drawn, row)) / 8;
      iteration = IterationOf(norm.dropout.drawn);
    }
    Pack8<T> added[kVectors];
    Pack8<T> parts[kPart ? kVectors : 1];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * kThreads + thread) * 8;
      if (column >= columns) continue;
      added[v] = LoadPack8Streaming(branch + column);
      if constexpr (kPart) parts[v] = LoadPack8Streaming(static_cast<const T*>(norm.part) + start + column);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * kThreads + thread) * 8;
      if (column >= columns) continue;
      float a[8];
      float b[8];
      Unpack8(held[v], a);
      Unpack8(added[v], b);
      if constexpr (kPart) {  // first, so that both ranks get the same bits
        float rest[8];
        Unpack8(parts[v], rest);
#pragma unroll
        for (int i = 0; i < 8; ++i) b[i] += rest[i];
      }
      if constexpr (kDrop) {
        if (bias != nullptr) {
          float rest[8];
          Load8(bias + column, rest);
#pragma unroll
          for (int i = 0; i < 8; ++i) b[i] += rest[i];
        }
        DropEight(norm.dropout, iteration, first_eight + column / 8, b);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] += b[i];
      if (!kDrop && bias != nullptr) {
        Load8(bias + column, b);
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] += b[i];
      }
      held[v] = ToPack8<T>(a);
      StorePack8(sum + column, held[v]);
    }
  }

  const float per_column = 1.0F / static_cast<float>(columns);
  float mean = 0;
  if constexpr (kLayer) {
    float total = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if ((v * kThreads + thread) * 8 >= columns) continue;
      float a[8];
      Unpack8(held[v], a);
#pragma unroll
      for (int i = 0; i < 8; ++i) total += a[i];
    }
    mean = sum_of_row(total) * per_column;
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if ((v * kThreads + thread) * 8 >= columns) continue;
    float a[8];
    Unpack8(held[v], a);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += (a[i] - mean) * (a[i] - mean);
  }
  const float rstd = rsqrtf(sum_of_row(squares) * per_column + norm.epsilon);

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = (v * kThreads + thread) * 8;
    if (column >= columns) continue;
    float a[8];
    float scale[8];
    float shift[8] = {};
    Unpack8(held[v], a);
    Load8(gamma + column, scale);
    AddGainOffset(norm.gain_offset, scale);
    if constexpr (kLayer) Load8(beta + column, shift);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      a[i] = NormOutput<kLayer>(Normed<kLayer>(a[i], mean, rstd), scale[i], shift[i]);
    put(column, a);
  }
  if (thread == 0) {
    if constexpr (kLayer) norm.mean[row] = mean;
    norm.rstd[row] = rstd;
  }
}

}  // namespace engine::backend::cuda

// A norm's gradient row by row, as the plain and the quantising kernel do it.
#pragma once

#include "engine/backend/cuda/kernels/column_sums.cuh"
#include "engine/backend/cuda/kernels/norm.cuh"
#include "engine/backend/cuda/kernels/norm.h"

namespace engine::backend::cuda {

// How a block has its rows.
template <int vectors, int slots, int rows = 1, int stages = 0, bool hold = true>
struct RowCut {
  static constexpr int kVectors = vectors;  // times eight columns a thread
  static constexpr int kSlots = slots;      // at least the warps of a block
  static constexpr int kRows = rows;        // that it takes a turn: 1, 2
  static constexpr int kStages = stages;  // of a ring of turns in shared memory; 0: the next one in registers
  // Between the two passes over a row x̂ and dy·γ stay in registers. Otherwise they are made anew, of dy and x
  // read once more, from the ring or from L2.
  static constexpr bool kHold = hold;
};

// By NormGradGrid::vectors: 1, 2, 4. With four, the sums leave no registers for rows on their way.
using NarrowCut = RowCut<1, 8>;
using MiddleCut = RowCut<2, 16, 1, 2>;
using WideCut = RowCut<4, 16, 1, 1, false>;

// One thread's part. Each byte is read once; the sums over rows stay in registers until the end.
template <typename T, typename Cut, bool kLayer, bool kResidual, bool kBias, bool kAgain, bool kPart>
class NormGradRows {
  static constexpr int kVectors = Cut::kVectors;
  static constexpr int kRows = Cut::kRows;
  static constexpr int kMeans = (kLayer ? 2 : 1) * kRows;  // Σ dy·γ·x̂ of each row, Σ dy·γ of each row
  static constexpr int kLanesPerMean = kWarp / kMeans;
  static constexpr int kTensors = kResidual ? 3 : 2;
  static_assert(Cut::kStages == 0 || kRows == 1);
  static_assert(!kPart || (Cut::kStages == 0 && Cut::kHold));

 public:
  static constexpr int kSums = 1 + (kLayer ? 1 : 0) + (kBias ? 1 : 0);
  // [warp, mean], twice; a turn's barrier tells that the turn before has been read.
  struct Shared {
    alignas(16) float means[2][Cut::kSlots][kMeans];
  };

  // All threads of the block, as all that follows. ring: [stages, rows, tensors, D].
  __device__ __forceinline__ NormGradRows(const NormGrad& of, Shared& shared, void* ring)
      : grad_(of), shared_(shared), columns_(static_cast<int>(of.columns)), ring_(static_cast<T*>(ring)) {
    // Slots of no warp add nothing.
    float* const means = &shared_.means[0][0][0];
    for (int i = thread_; i < static_cast<int>(sizeof(Shared) / sizeof(float)); i += threads_) means[i] = 0;
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!Inside(v)) continue;
      gamma_[v] = LoadPack8(static_cast<const T*>(grad_.gamma) + Column(v));
      if constexpr (kLayer && kAgain) beta_[v] = LoadPack8(static_cast<const T*>(grad_.beta) + Column(v));
    }
  }

  __device__ __forceinline__ int Column(int v) const { return (v * threads_ + thread_) * 8; }
  __device__ __forceinline__ bool Inside(int v) const { return Column(v) < columns_; }

  // Before the first turn. at(i): the first row of turn i, all the rows or more if there is none.
  template <typename At>
  __device__ __forceinline__ void Begin(const At& at) {
    if constexpr (Cut::kStages == 0) {
      Load(at(0));
      LoadResidual(at(0));
    } else {
#pragma unroll
      for (int stage = 0; stage + 1 < Cut::kStages; ++stage) Copy(at(stage), stage);
    }
    LoadStatistics(at(0));
  }

  // The rows from `first`. next: where the next turn begins; ahead: with a ring, the turn after `stages` − 1
  // more. put(row, column, dx as rounded) is called where dx is stored.
  template <typename Put>
  __device__ __forceinline__ void Turn(std::int64_t first, std::int64_t next, std::int64_t ahead,
                                       const Put& put) {
    if constexpr (Cut::kStages > 0) {
      Copy(ahead, stage_ == 0 ? Cut::kStages - 1 : stage_ - 1);
      WaitForCopies<Cut::kStages - 1>();
    }
    float mean[kRows];
    float rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] = next_mean_[r];
      rstd[r] = next_rstd_[r];
    }
    float normed[Cut::kHold ? kRows : 1][Cut::kHold ? kVectors : 1][8];
    float scaled[Cut::kHold ? kRows : 1][Cut::kHold ? kVectors : 1][8];
    float terms[kMeans] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float a[8];
        float d[8];
        float g[8];
        float b[8];
        Unpack8(X(r, v), a);
        Unpack8(Dy(r, v), d);
        if constexpr (kPart) {
          float rest[8];
          Unpack8(part_[r][v], rest);
#pragma unroll
          for (int i = 0; i < 8; ++i) d[i] += rest[i];
        }
        Gain(v, g);
        if constexpr (kLayer && kAgain) Unpack8(beta_[v], b);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float n = Normed<kLayer>(a[i], mean[r], rstd[r]);
          const float s = d[i] * g[i];
          d_gamma_[v][i] += d[i] * n;
          if constexpr (kLayer) d_beta_[v][i] += d[i];
          terms[r] += s * n;
          if constexpr (kLayer) terms[kRows + r] += s;
          if constexpr (Cut::kHold) normed[r][v][i] = n, scaled[r][v][i] = s;
          if constexpr (kAgain) a[i] = NormOutput<kLayer>(n, g[i], kLayer ? b[i] : 0.0F);
        }
        if constexpr (kAgain) {
          if (Inside(v) && Exists(first + r)) {
            Store8(static_cast<T*>(grad_.y) + (first + r) * columns_ + Column(v), a);
          }
        }
      }
    }
    if constexpr (Cut::kStages == 0 && Cut::kHold) Load(next);
    LoadStatistics(next);
    float sums[kMeans];
    BlockSums(terms, sums);

    const float per_column = 1.0F / static_cast<float>(columns_);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = first + r;
      const float of_normed = -rstd[r] * (sums[r] * per_column);
      const float of_one = kLayer ? -rstd[r] * (sums[kMeans - kRows + r] * per_column) : 0.0F;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float value[8] = {};
        if constexpr (kResidual) Unpack8(Residual(r, v), value);
        if constexpr (Cut::kHold) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            value[i] = Gradient(value[i], normed[r][v][i], scaled[r][v][i], of_normed, of_one, rstd[r]);
          }
        } else {
          float a[8];
          float d[8];
          float g[8];
          Unpack8(X(r, v), a);
          Unpack8(Dy(r, v), d);
          Gain(v, g);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            value[i] = Gradient(value[i], Normed<kLayer>(a[i], mean[r], rstd[r]), d[i] * g[i], of_normed,
                                of_one, rstd[r]);
          }
        }
        const Pack8<T> rounded = ToPack8<T>(value);
        Unpack8(rounded, value);
        if constexpr (kBias) {
#pragma unroll
          for (int i = 0; i < 8; ++i) d_bias_[v][i] += value[i];
        }
        if (Inside(v) && Exists(row)) {
          StorePack8(static_cast<T*>(grad_.dx) + row * columns_ + Column(v), rounded);
          put(row, Column(v), value);
        }
      }
    }
    if constexpr (Cut::kStages == 0) {
      if constexpr (!Cut::kHold) Load(next);
      LoadResidual(next);
    } else {
      stage_ = stage_ + 1 == Cut::kStages ? 0 : stage_ + 1;
    }
    buffer_ ^= 1;
  }

  // Writes the block's sums.
  __device__ __forceinline__ void Finish() {
    float* const line = grad_.partial + std::int64_t{blockIdx.x} * kSums * columns_;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!Inside(v)) continue;
      Store8(line + Column(v), d_gamma_[v]);
      if constexpr (kLayer) Store8(line + columns_ + Column(v), d_beta_[v]);
      if constexpr (kBias) Store8(line + (kSums - 1) * columns_ + Column(v), d_bias_[v]);
    }
  }

 private:
  static __device__ __forceinline__ float Gradient(float residual, float normed, float scaled,
                                                   float of_normed, float of_one, float rstd) {
    if constexpr (kLayer) residual += of_one;
    return fmaf(scaled, rstd, fmaf(normed, of_normed, residual));
  }

  // In fp32 only while they are used: what the registers hold is gamma in its own type.
  __device__ __forceinline__ void Gain(int v, float (&gain)[8]) const {
    Unpack8(gamma_[v], gain);
    AddGainOffset(grad_.gain_offset, gain);
  }

  // Every thread gets the sums of all threads' terms.
  __device__ __forceinline__ void BlockSums(float (&terms)[kMeans], float (&sums)[kMeans]) {
    const float own = WarpSums(terms);
    auto& means = shared_.means[buffer_];
    const int lane = thread_ % kWarp;
    if (lane % kLanesPerMean == 0) means[thread_ / kWarp][lane / kLanesPerMean] = own;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMeans; ++i) sums[i] = 0;
#pragma unroll
    for (int slot = 0; slot < Cut::kSlots; ++slot) {
#pragma unroll
      for (int i = 0; i < kMeans; ++i) sums[i] += means[slot][i];
    }
  }

  __device__ __forceinline__ void LoadStatistics(std::int64_t first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool there = first + r < grad_.rows;
      next_mean_[r] = kLayer && there ? grad_.mean[first + r] : 0.0F;
      next_rstd_[r] = there ? grad_.rstd[first + r] : 0.0F;
    }
  }

  // Of the rows of a turn the first is there.
  __device__ __forceinline__ bool Exists(std::int64_t row) const { return kRows == 1 || row < grad_.rows; }

  // Zeros where a turn lacks a row; columns outside stay zeros throughout.
  __device__ __forceinline__ void LoadRows(const void* from, std::int64_t first,
                                           Pack8<T> (&packs)[kRows][kVectors]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= grad_.rows) {
        if constexpr (kRows > 1) {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) packs[r][v] = {};
        }
        continue;
      }
      const T* const row = static_cast<const T*>(from) + (first + r) * columns_;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (Inside(v)) packs[r][v] = LoadPack8Streaming(row + Column(v));
      }
    }
  }
  __device__ __forceinline__ void Load(std::int64_t first) {
    LoadRows(grad_.x, first, x_);
    LoadRows(grad_.dy, first, dy_);
    if constexpr (kPart) LoadRows(grad_.part, first, part_);
  }
  __device__ __forceinline__ void LoadResidual(std::int64_t first) {
    if constexpr (kResidual) LoadRows(grad_.residual, first, residual_);
  }

  // Ends a group of copies in any case.
  __device__ __forceinline__ void Copy(std::int64_t first, int stage) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= grad_.rows) break;
      const std::int64_t start = (first + r) * columns_;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!Inside(v)) continue;
        T* const to = ring_ + ((stage * kRows + r) * kTensors) * columns_ + Column(v);
#pragma unroll
        for (int part = 0; part < static_cast<int>(sizeof(T) / 2); ++part) {
          const int skip = part * 16 / static_cast<int>(sizeof(T));
          const std::int64_t from = start + Column(v) + skip;
          CopyAsync16(to + skip, static_cast<const T*>(grad_.x) + from);
          CopyAsync16(to + columns_ + skip, static_cast<const T*>(grad_.dy) + from);
          if constexpr (kResidual) {
            CopyAsync16(to + 2 * columns_ + skip, static_cast<const T*>(grad_.residual) + from);
          }
        }
      }
    }
    EndCopyGroup();
  }
  __device__ __forceinline__ Pack8<T> FromRing(int tensor, int r, int v) const {
    Pack8<T> pack = {};
    if (Inside(v)) {
      pack = LoadPack8(ring_ + ((stage_ * kRows + r) * kTensors + tensor) * columns_ + Column(v));
    }
    return pack;
  }
  __device__ __forceinline__ Pack8<T> X(int r, int v) const {
    if constexpr (Cut::kStages == 0) return x_[r][v];
    return FromRing(0, r, v);
  }
  __device__ __forceinline__ Pack8<T> Dy(int r, int v) const {
    if constexpr (Cut::kStages == 0) return dy_[r][v];
    return FromRing(1, r, v);
  }
  __device__ __forceinline__ Pack8<T> Residual(int r, int v) const {
    if constexpr (Cut::kStages == 0) return residual_[r][v];
    return FromRing(2, r, v);
  }

  const NormGrad& grad_;
  Shared& shared_;
  const int columns_;
  T* const ring_;
  const int threads_ = static_cast<int>(blockDim.x);
  const int thread_ = static_cast<int>(threadIdx.x);
  int stage_ = 0;
  int buffer_ = 0;
  Pack8<T> gamma_[kVectors] = {};
  Pack8<T> beta_[kLayer && kAgain ? kVectors : 1] = {};
  float d_gamma_[kVectors][8] = {};
  float d_beta_[kLayer ? kVectors : 1][8] = {};
  float d_bias_[kBias ? kVectors : 1][8] = {};
  Pack8<T> x_[kRows][kVectors] = {};
  Pack8<T> dy_[kRows][kVectors] = {};
  Pack8<T> part_[kPart ? kRows : 1][kPart ? kVectors : 1] = {};
  Pack8<T> residual_[kRows][kVectors] = {};
  float next_mean_[kRows] = {};
  float next_rstd_[kRows] = {};
};

// The grid stays for all rows.
template <typename T, typename Cut, int kThreads, bool kLayer, bool kResidual, bool kBias, bool kAgain,
          bool kPart>
__global__ void __launch_bounds__(kThreads, 1) NormGradKernel(__grid_constant__ const NormGrad grad) {
  using Rows = NormGradRows<T, Cut, kLayer, kResidual, kBias, kAgain, kPart>;
  extern __shared__ uint4 ring[];
  __shared__ typename Rows::Shared shared;
  Rows rows(grad, shared, ring);
  const std::int64_t step = std::int64_t{gridDim.x} * Cut::kRows;
  const std::int64_t begin = std::int64_t{blockIdx.x} * Cut::kRows;
  rows.Begin([&](int turn) { return begin + turn * step; });
  for (std::int64_t first = begin; first < grad.rows; first += step) {
    rows.Turn(first, first + step, first + (Cut::kStages - 1) * step,
              [](std::int64_t, int, const float(&)[8]) {});
  }
  rows.Finish();
}

inline void AddNormGradLines(const NormGrad& grad, std::int64_t lines, cudaStream_t stream) {
  ColumnSums sums{.partial = grad.partial, .lines = lines, .sums = 0, .columns = grad.columns};
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

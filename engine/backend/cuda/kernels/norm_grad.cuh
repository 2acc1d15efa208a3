// A norm's gradient row by row, as the plain and the quantising kernel do it.
#pragma once

#include "engine/backend/cuda/kernels/column_sums.cuh"
#include "engine/backend/cuda/kernels/norm.cuh"
#include "engine/backend/cuda/kernels/norm.h"
#include "engine/backend/cuda/kernels/norm_grad_reader.cuh"

namespace engine::backend::cuda {

// One thread's part; the sums over rows stay in registers until the end.
template <typename T, typename Cut, bool kLayer, bool kResidual, bool kBias, bool kAgain, bool kPart>
class NormGradRows {
  static constexpr int kVectors = Cut::kVectors;
  static constexpr int kRows = Cut::kRows;
  static constexpr int kMeans = (kLayer ? 2 : 1) * kRows;  // Σ dy·γ·x̂ of each row, Σ dy·γ of each row
  static constexpr int kLanesPerMean = kWarp / kMeans;

 public:
  static constexpr int kSums = 1 + (kLayer ? 1 : 0) + (kBias ? 1 : 0);
  // [warp, mean], twice; a turn's barrier tells that the turn before has been read.
  struct Shared {
    alignas(16) float means[2][Cut::kSlots][kMeans];
  };

  // All threads of the block, as all that follows. ring: [stages, rows, tensors, D].
  __device__ __forceinline__ NormGradRows(const NormGrad& of, Shared& shared, void* ring)
      : grad_(of), shared_(shared), rows_(of, ring) {
    // Slots of no warp add nothing.
    float* const means = &shared_.means[0][0][0];
    for (int i = rows_.thread(); i < static_cast<int>(sizeof(Shared) / sizeof(float)); i += rows_.threads())
      means[i] = 0;
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!rows_.Inside(v)) continue;
      gamma_[v] = LoadPack8(static_cast<const T*>(grad_.gamma) + rows_.Column(v));
      if constexpr (kLayer && kAgain)
        beta_[v] = LoadPack8(static_cast<const T*>(grad_.beta) + rows_.Column(v));
    }
  }

  // Before the first turn (NormGradReader::Begin).
  template <typename At>
  __device__ __forceinline__ void Begin(const At& at) {
    rows_.Begin(at);
  }

  // The rows from `first`. next: where the next turn begins; ahead: with a ring, the turn after `stages` − 1
  // more. put(row, column, dx as rounded) is called where dx is stored.
  template <typename Put>
  __device__ __forceinline__ void Turn(std::int64_t first, std::int64_t next, std::int64_t ahead,
                                       const Put& put) {
    rows_.Await(ahead);
    float mean[kRows];
    float rstd[kRows];
    rows_.Statistics(mean, rstd);
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
        Unpack8(rows_.X(r, v), a);
        Unpack8(rows_.Dy(r, v), d);
        if constexpr (kPart) {
          float rest[8];
          Unpack8(rows_.Part(r, v), rest);
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
          if (rows_.Inside(v) && rows_.Exists(first + r)) {
            Store8(static_cast<T*>(grad_.y) + (first + r) * rows_.columns() + rows_.Column(v), a);
          }
        }
      }
    }
    rows_.LoadNext(next);
    float sums[kMeans];
    BlockSums(terms, sums);

    const float per_column = 1.0F / static_cast<float>(rows_.columns());
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = first + r;
      const float of_normed = -rstd[r] * (sums[r] * per_column);
      const float of_one = kLayer ? -rstd[r] * (sums[kMeans - kRows + r] * per_column) : 0.0F;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float value[8] = {};
        if constexpr (kResidual) Unpack8(rows_.Residual(r, v), value);
        if constexpr (Cut::kHold) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            value[i] = Gradient(value[i], normed[r][v][i], scaled[r][v][i], of_normed, of_one, rstd[r]);
          }
        } else {
          float a[8];
          float d[8];
          float g[8];
          Unpack8(rows_.X(r, v), a);
          Unpack8(rows_.Dy(r, v), d);
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
        if (rows_.Inside(v) && rows_.Exists(row)) {
          StorePack8(static_cast<T*>(grad_.dx) + row * rows_.columns() + rows_.Column(v), rounded);
          put(row, rows_.Column(v), value);
        }
      }
    }
    rows_.Next(next);
    buffer_ ^= 1;
  }

  // Writes the block's sums.
  __device__ __forceinline__ void Finish() {
    float* const line = grad_.partial + std::int64_t{blockIdx.x} * kSums * rows_.columns();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!rows_.Inside(v)) continue;
      Store8(line + rows_.Column(v), d_gamma_[v]);
      if constexpr (kLayer) Store8(line + rows_.columns() + rows_.Column(v), d_beta_[v]);
      if constexpr (kBias) Store8(line + (kSums - 1) * rows_.columns() + rows_.Column(v), d_bias_[v]);
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
    const int lane = rows_.thread() % kWarp;
    if (lane % kLanesPerMean == 0) means[rows_.thread() / kWarp][lane / kLanesPerMean] = own;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMeans; ++i) sums[i] = 0;
#pragma unroll
    for (int slot = 0; slot < Cut::kSlots; ++slot) {
#pragma unroll
      for (int i = 0; i < kMeans; ++i) sums[i] += means[slot][i];
    }
  }

  const NormGrad& grad_;
  Shared& shared_;
  NormGradReader<T, Cut, kLayer, kResidual, kPart> rows_;
  int buffer_ = 0;
  Pack8<T> gamma_[kVectors] = {};
  Pack8<T> beta_[kLayer && kAgain ? kVectors : 1] = {};
  float d_gamma_[kVectors][8] = {};
  float d_beta_[kLayer ? kVectors : 1][8] = {};
  float d_bias_[kBias ? kVectors : 1][8] = {};
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

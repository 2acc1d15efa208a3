// How a block reads the rows of a norm's gradient: turn by turn, ahead of their use.
#pragma once

#include "engine/backend/cuda/kernels/norm.h"
#include "engine/backend/cuda/kernels/vector.cuh"

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

// One thread's part of the rows of x, dy, part and residual, and their statistics. Each byte is read once. All threads of
// a block do the same, in this order: Begin, then for each turn Await, X and Dy and Statistics, LoadNext, Residual (and,
// where Cut::kHold is not set, X and Dy again), Next.
template <typename T, typename Cut, bool kLayer, bool kResidual, bool kPart>
class NormGradReader {
  static constexpr int kVectors = Cut::kVectors;
  static constexpr int kRows = Cut::kRows;
  static constexpr int kTensors = kResidual ? 3 : 2;
  static_assert(Cut::kStages == 0 || kRows == 1);
  static_assert(!kPart || (Cut::kStages == 0 && Cut::kHold));

 public:
  // ring: [stages, rows, tensors, D].
  __device__ __forceinline__ NormGradReader(const NormGrad& of, void* ring)
      : grad_(of), columns_(static_cast<int>(of.columns)), ring_(static_cast<T*>(ring)) {}

  __device__ __forceinline__ int thread() const { return thread_; }
  __device__ __forceinline__ int threads() const { return threads_; }
  __device__ __forceinline__ int columns() const { return columns_; }
  __device__ __forceinline__ int Column(int v) const { return (v * threads_ + thread_) * 8; }
  __device__ __forceinline__ bool Inside(int v) const { return Column(v) < columns_; }
  // A turn always has its first row; the second may be missing.
  __device__ __forceinline__ bool Exists(std::int64_t row) const { return kRows == 1 || row < grad_.rows; }

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

  // `ahead` is the first row of the turn that a ring begins to copy now; without a ring it is not used.
  __device__ __forceinline__ void Await(std::int64_t ahead) {
    if constexpr (Cut::kStages > 0) {
      Copy(ahead, stage_ == 0 ? Cut::kStages - 1 : stage_ - 1);
      WaitForCopies<Cut::kStages - 1>();
    }
  }

  // Of row r of the turn, vector v.
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
  // Only with kPart.
  __device__ __forceinline__ const Pack8<T>& Part(int r, int v) const { return part_[r][v]; }
  __device__ __forceinline__ void Statistics(float (&mean)[kRows], float (&rstd)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] = next_mean_[r];
      rstd[r] = next_rstd_[r];
    }
  }

  // The first pass over the rows is done. next: where the next turn begins.
  __device__ __forceinline__ void LoadNext(std::int64_t next) {
    if constexpr (Cut::kStages == 0 && Cut::kHold) Load(next);
    LoadStatistics(next);
  }
  // The turn is done.
  __device__ __forceinline__ void Next(std::int64_t next) {
    if constexpr (Cut::kStages == 0) {
      if constexpr (!Cut::kHold) Load(next);
      LoadResidual(next);
    } else {
      stage_ = stage_ + 1 == Cut::kStages ? 0 : stage_ + 1;
    }
  }

 private:
  __device__ __forceinline__ void LoadStatistics(std::int64_t first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool there = first + r < grad_.rows;
      next_mean_[r] = kLayer && there ? grad_.mean[first + r] : 0.0F;
      next_rstd_[r] = there ? grad_.rstd[first + r] : 0.0F;
    }
  }

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

  const NormGrad& grad_;
  const int columns_;
  T* const ring_;
  const int threads_ = static_cast<int>(blockDim.x);
  const int thread_ = static_cast<int>(threadIdx.x);
  int stage_ = 0;
  Pack8<T> x_[kRows][kVectors] = {};
  Pack8<T> dy_[kRows][kVectors] = {};
  Pack8<T> part_[kPart ? kRows : 1][kPart ? kVectors : 1] = {};
  Pack8<T> residual_[kRows][kVectors] = {};
  float next_mean_[kRows] = {};
  float next_rstd_[kRows] = {};
};

}  // namespace engine::backend::cuda

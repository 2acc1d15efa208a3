// The sums over rows of a norm's parameter gradients: each block of rows adds its terms up in scratch, then
// the blocks are added in order, so that the result depends on the shape alone.
#pragma once

#include "engine/backend/cpu/kernels/loops.h"

namespace engine::backend::cpu {

inline constexpr std::int64_t kNormRows = 32;  // rows of a block

// row(r, sums): handles row r and adds its terms into sums[kSums · D]. Then outputs 1…kSums of args get the
// totals.
template <int kSums, typename T, typename Row>
void SumOverRows(const KernelArgs& args, std::int64_t rows, std::int64_t columns, const Row& row) {
  T* partial = reinterpret_cast<T*>(args.scratch.data());
  ForEachBlock(args, rows, kNormRows, [&](std::int64_t first, std::int64_t last) {
    T* sums = partial + first / kNormRows * kSums * columns;
    std::fill_n(sums, kSums * columns, T(0));
    for (std::int64_t r = first; r < last; ++r) row(r, sums);
  });
  const std::int64_t blocks = (rows + kNormRows - 1) / kNormRows;
  for (int sum = 0; sum < kSums; ++sum) {
    T* total = args.outputs[1 + sum].as<T>();
    if (!Accumulates(args, 1 + sum)) std::fill_n(total, columns, T(0));
    for (std::int64_t block = 0; block < blocks; ++block) {
      const T* sums = partial + (block * kSums + sum) * columns;
      for (std::int64_t i = 0; i < columns; ++i) total[i] += sums[i];
    }
  }
}

}  // namespace engine::backend::cpu

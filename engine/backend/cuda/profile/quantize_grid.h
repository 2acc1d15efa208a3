// How the FP8 kernels cut their work. Sums over rows are added in the order that the cut gives, so it depends
// on the shape alone (column_sums.h). No CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/cuda/profile/column_sums.h"

namespace engine::backend::cuda {

// cuBLASLt's FP8 products want every dim to be a multiple of this, and so the transposed copy is written in
// pieces of so many rows.
inline constexpr std::int64_t kFp8Multiple = 16;

// Element by element: a block to a tile. Each row of tiles writes one line of partial column sums.
inline constexpr std::int64_t kQuantizeTileRows = 128;
inline constexpr std::int64_t kQuantizeTileColumns = 128;

constexpr std::int64_t QuantizeLines(std::int64_t rows) { return CeilDivide(rows, kQuantizeTileRows); }

// Bytes of a row of FP8 in a strip (fp8.cuh).
constexpr std::int64_t StripPitch(std::int64_t columns) { return CeilDivide(columns, 128) * 128; }

// Shared memory of a multiprocessor of compute capability 9.0, and what one block may take of it.
inline constexpr std::int64_t kSharedBytes = std::int64_t{228} << 10;
inline constexpr std::int64_t kSharedBytesPerBlock = std::int64_t{227} << 10;
// A block's static arrays and the 1 KiB that the driver keeps of it.
inline constexpr std::int64_t kReservedBytesPerBlock = std::int64_t{2} << 10;

// Norms: a block holds a strip of rows as FP8 until it can write it transposed. Where even 16 rows are too
// long for shared memory, the norm and the quantisation are two kernels.
constexpr bool NormFitsStrip(std::int64_t columns) {
  return kFp8Multiple * StripPitch(columns) + kReservedBytesPerBlock <= kSharedBytesPerBlock;
}

// A norm's gradient on rows × columns of 16-bit elements. A block has a strip, a row of it at a time.
struct NormGradQuantizeGrid {
  std::int64_t strip_rows = 0;  // 0: two kernels
  int vectors = 1;              // times eight columns a thread
  int threads = 0;
  std::int64_t shared_bytes = 0;
  std::int64_t blocks = 0;  // lines of partial sums
};

constexpr NormGradQuantizeGrid MakeNormGradQuantizeGrid(std::int64_t rows, std::int64_t columns) {
  const NormGradGrid plain = MakeNormGradGrid(rows, columns);
  NormGradQuantizeGrid grid;
  if (columns % kFp8Multiple != 0 || plain.vectors == 0 || plain.vectors > 2) return grid;
  grid.vectors = plain.vectors;
  grid.threads = plain.threads;
  const std::int64_t ring = grid.vectors == 1 ? 0 : columns * 2 * 3 * 2;
  // Many blocks on a multiprocessor, of which some compute while others write; then long strips, as the rows
  // of a strip are the columns' consecutive bytes.
  const std::int64_t threads = grid.vectors == 1 ? kNormGradNarrowThreads : kNormGradMaxThreads;
  for (std::int64_t blocks = threads / grid.threads; blocks >= 1; --blocks) {
    for (std::int64_t strip_rows = 64; strip_rows >= kFp8Multiple; strip_rows /= 2) {
      const std::int64_t bytes = strip_rows * StripPitch(columns) + ring;
      const std::int64_t block = bytes + kReservedBytesPerBlock;
      if (block > kSharedBytesPerBlock || blocks * block > kSharedBytes) continue;
      grid.strip_rows = strip_rows;
      grid.shared_bytes = bytes;
      const std::int64_t strips = CeilDivide(rows, strip_rows);
      const std::int64_t turns = std::max<std::int64_t>(CeilDivide(strips, blocks * kMultiprocessors), 1);
      grid.blocks = CeilDivide(strips, turns);  // of as many strips each
      return grid;
    }
  }
  return grid;
}

// Lines of partial sums that there is room for, whether it becomes one kernel or two.
constexpr std::int64_t NormGradQuantizeLines(std::int64_t rows, std::int64_t columns) {
  return std::max(MakeNormGradQuantizeGrid(rows, columns).blocks, MakeNormGradGrid(rows, columns).blocks);
}

}  // namespace engine::backend::cuda

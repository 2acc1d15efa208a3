// How the FP8 kernels cut their work. Sums over rows are added in the order that the cut gives, so it depends
// on the shape alone (column_sums.h). No CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/backend/cuda/kernels/column_sums.h"

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

// A norm's gradient on rows × columns of 16-bit elements. A block takes `teams` rows a turn. Beside its strip
// it keeps a ring of `stages` turns of dy, x and residual.
struct NormGradQuantizeGrid {
  std::int64_t strip_rows = 0;  // 0: two kernels
  int vectors = 1;              // times eight columns a thread
  int teams = 1;
  int team_threads = 0;
  int stages = 0;
  std::int64_t shared_bytes = 0;
  std::int64_t blocks = 0;  // lines of partial sums
};

inline constexpr int kNormGradQuantizeMaxStages = 4;

constexpr NormGradQuantizeGrid MakeNormGradQuantizeGrid(std::int64_t rows, std::int64_t columns) {
  NormGradQuantizeGrid grid;
  if (columns % kFp8Multiple != 0 || columns > 4 * 8 * kNormGradMaxThreads) return grid;
  const std::int64_t pieces = columns / 8;
  grid.vectors = pieces <= kNormGradMaxThreads ? 1 : pieces <= 2 * kNormGradMaxThreads ? 2 : 4;
  const std::int64_t warps = CeilDivide(CeilDivide(pieces, grid.vectors), 32);
  grid.team_threads = static_cast<int>(32 * warps);
  grid.teams = warps <= 2 ? 4 : warps <= 5 ? 2 : 1;
  // As many as the kernels' registers allow: at most 96 a thread with one vector, 128 with more.
  const std::int64_t most_blocks =
      std::max<std::int64_t>(1, (grid.vectors == 1 ? 640 : 512) / (grid.teams * grid.team_threads));
  const auto bytes = [&](std::int64_t strip_rows, std::int64_t stages) {
    return strip_rows * StripPitch(columns) + stages * grid.teams * 3 * columns * 2;
  };
  const auto resident = [&](std::int64_t strip_rows, std::int64_t stages) -> std::int64_t {
    const std::int64_t block = bytes(strip_rows, stages) + kReservedBytesPerBlock;
    return block > kSharedBytesPerBlock ? 0 : std::min(most_blocks, kSharedBytes / block);
  };
  // First that two blocks fit, so that one computes while the other waits; then rows on their way while
  // others are worked on; then long strips, as the rows of a strip are the columns' consecutive bytes.
  std::int64_t blocks = std::min<std::int64_t>(2, most_blocks);
  const auto choose = [&](std::int64_t stages) {
    for (std::int64_t strip_rows = 64; strip_rows >= kFp8Multiple; strip_rows /= 2) {
      if (resident(strip_rows, stages) < blocks) continue;
      grid.strip_rows = strip_rows;
      grid.stages = static_cast<int>(stages);
      return true;
    }
    return false;
  };
  if (!choose(2)) {
    blocks = 1;
    if (!choose(2) && !choose(1)) return grid;
  }
  blocks = resident(grid.strip_rows, grid.stages);
  while (grid.stages < kNormGradQuantizeMaxStages && resident(grid.strip_rows, grid.stages + 1) == blocks) {
    ++grid.stages;
  }
  grid.shared_bytes = bytes(grid.strip_rows, grid.stages);
  grid.blocks = std::min(CeilDivide(rows, grid.strip_rows), blocks * kMultiprocessors);
  return grid;
}

// Lines of partial sums that there is room for, whether it becomes one kernel or two.
constexpr std::int64_t NormGradQuantizeLines(std::int64_t rows, std::int64_t columns) {
  return std::max(MakeNormGradQuantizeGrid(rows, columns).blocks, MakeNormGradGrid(rows, columns).blocks);
}

}  // namespace engine::backend::cuda

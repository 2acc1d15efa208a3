// How sums over rows are cut into blocks. Each block adds up its rows and writes one line of partial sums to
// scratch; a second kernel adds the lines in order. The cut depends on the shape alone, as scratch is planned
// on machines without GPUs and results must not depend on the device. No CUDA header.
#pragma once

#include <algorithm>
#include <cstdint>

namespace engine::backend::cuda {

// Grids that stay for the whole kernel are made to fill an H200 once.
inline constexpr std::int64_t kMultiprocessors = 132;

constexpr std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A norm's gradient on rows × columns. A block has a row at a time, a thread `vectors` times eight columns.
struct NormGradGrid {
  int vectors = 0;  // 0: the plain kernel, for columns that are no multiple of 8 or too many
  int threads = 256;
  std::int64_t blocks = 0;  // lines of partial sums
};

// Of a multiprocessor: 96 registers a thread with one vector, whose warps are at most eight a block, else
// 128.
inline constexpr int kNormGradNarrowThreads = 640;
inline constexpr int kNormGradMaxThreads = 512;

constexpr NormGradGrid MakeNormGradGrid(std::int64_t rows, std::int64_t columns) {
  NormGradGrid grid;
  if (columns % 8 != 0 || columns > std::int64_t{4} * 8 * kNormGradMaxThreads) {
    grid.blocks = std::min(rows, kMultiprocessors);
    return grid;
  }
  const std::int64_t pieces = columns / 8;
  grid.vectors = pieces <= 256 ? 1 : pieces <= std::int64_t{2} * kNormGradMaxThreads ? 2 : 4;
  const std::int64_t warps = CeilDivide(CeilDivide(pieces, grid.vectors), 32);
  const std::int64_t threads = grid.vectors == 1 ? kNormGradNarrowThreads : kNormGradMaxThreads;
  grid.threads = static_cast<int>(32 * warps);
  grid.blocks = std::min(rows, threads / grid.threads * kMultiprocessors);
  return grid;
}

// A norm's row is held in registers, of one warp or of a block; else it is read again.
constexpr bool HoldsNormRows(std::int64_t columns) {
  constexpr std::int64_t kWidest = std::int64_t{8} * 8 * 32 * 8;  // vectors × warps × lanes × columns
  return columns % 8 == 0 && columns <= kWidest;
}

// bias_grad: tiles of 256 columns times chunks of rows.
struct BiasGradGrid {
  std::int64_t tiles = 0;
  std::int64_t chunks = 0;  // lines of partial sums
  std::int64_t rows_per_chunk = 0;
};

inline constexpr std::int64_t kBiasGradTile = 256;
inline constexpr std::int64_t kBiasGradBlocksPerMultiprocessor = 4;

constexpr BiasGradGrid MakeBiasGradGrid(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kLeastRows = 64;  // eight warps, eight rows in flight each
  BiasGradGrid grid;
  grid.tiles = CeilDivide(columns, kBiasGradTile);
  const std::int64_t chunks =
      std::max<std::int64_t>(1, kBiasGradBlocksPerMultiprocessor * kMultiprocessors / grid.tiles);
  grid.rows_per_chunk = std::max(CeilDivide(rows, chunks), kLeastRows);
  grid.chunks = CeilDivide(rows, grid.rows_per_chunk);
  return grid;
}

// gelu_grad_again with a bias gradient and dropout_grad_bias: the same tiles in short chunks, so that the blocks that write
// keep close together in memory. The lines are 1/64 of the bytes of 16-bit tensors.
constexpr BiasGradGrid MakeShortGrid(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kMostChunks = 4096;
  BiasGradGrid grid;
  grid.tiles = CeilDivide(columns, kBiasGradTile);
  grid.rows_per_chunk = std::max(CeilDivide(rows, kMostChunks), kRows);
  grid.chunks = CeilDivide(rows, grid.rows_per_chunk);
  return grid;
}

}  // namespace engine::backend::cuda

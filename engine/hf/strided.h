// Copies between our row-major boxes and their tensors, whose elements lie at other distances: runs along one dim, or tiles of two,
// in an order that keeps both sides' cache lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/hf/weights.h"

namespace engine::hf {

struct StridedDim {
  std::int64_t count, from_step, to_step;
};
// Elements from + line · lines.from_step + i · run.from_step, and to + line · lines.to_step + i · run.to_step.
struct StridedTile {
  std::int64_t from, to;
  StridedDim lines, run;
  std::int64_t last_from() const {
    return from + (lines.count - 1) * lines.from_step + (run.count - 1) * run.from_step;
  }
};
struct StridedCopy {
  std::int64_t from = 0, to = 0;
  std::vector<StridedDim>
      dims;  // outermost first, none of size 1, neighbours joined where both sides allow it
};

// The elements of `some`, a box of ours within that of the part: from their tensor, to a row-major buffer of `whole`.
inline StridedCopy StridedCopyOf(const checkpoint::Box& some, const Part& part,
                                 const checkpoint::Box& whole) {
  StridedCopy copy{.from = part.their_begin, .to = 0, .dims = {}};
  const int rank = some.count.rank();
  std::vector<std::int64_t> to(static_cast<std::size_t>(rank));
  std::int64_t step = 1;
  for (int dim = rank - 1; dim >= 0; --dim) {
    to[static_cast<std::size_t>(dim)] = step;
    step *= whole.count[dim];
  }
  for (int dim = 0; dim < rank; ++dim) {
    const StridedDim next = {some.count[dim], part.their_stride[dim], to[static_cast<std::size_t>(dim)]};
    copy.from += (some.start[dim] - part.box.start[dim]) * next.from_step;
    copy.to += (some.start[dim] - whole.start[dim]) * next.to_step;
    if (next.count == 1) continue;
    if (!copy.dims.empty() && copy.dims.back().from_step == next.count * next.from_step &&
        copy.dims.back().to_step == next.count * next.to_step) {
      copy.dims.back() = {copy.dims.back().count * next.count, next.from_step, next.to_step};
    } else {
      copy.dims.push_back(next);
    }
  }
  return copy;
}

// What tiles of more than one line have at most: a buffer of them is 8 KiB, and stays in a core's first cache.
inline constexpr std::int64_t kTileLines = 32, kTileRun = 64;

// One line and one long run, where both sides have the same inner dim. Else tiles: their runs are consecutive elements of
// theirs, and ours are those of a line after another, so that who goes through a buffer of the tile has whole cache lines of
// both sides at a time. Tiles side by side are of the same pages of ours.
template <typename Body>
void ForEachStridedTile(StridedCopy copy, const Body& body) {
  constexpr std::int64_t kLines = 16 * kTileLines;
  constexpr StridedDim kOne = {1, 0, 0};
  if (copy.dims.empty()) return body(StridedTile{copy.from, copy.to, kOne, {1, 1, 1}});
  // The inner dim of theirs goes right before ours.
  auto inner =
      std::min_element(copy.dims.begin(), copy.dims.end() - 1,
                       [](const StridedDim& a, const StridedDim& b) { return a.from_step < b.from_step; });
  const bool turned = copy.dims.size() > 1 && copy.dims.back().from_step != 1 && inner->from_step == 1;
  if (turned) std::rotate(inner, inner + 1, copy.dims.end() - 1);
  const std::size_t outer = copy.dims.size() - (turned ? 2 : 1);
  const StridedDim last = copy.dims.back();
  std::vector<std::int64_t> at(outer, 0);
  while (true) {
    std::int64_t from = copy.from, to = copy.to;
    for (std::size_t dim = 0; dim < outer; ++dim) {
      from += at[dim] * copy.dims[dim].from_step;
      to += at[dim] * copy.dims[dim].to_step;
    }
    if (turned) {
      const StridedDim& theirs = copy.dims[outer];
      for (std::int64_t block = 0; block < last.count; block += kLines) {
        const std::int64_t block_end = std::min(block + kLines, last.count);
        for (std::int64_t j = 0; j < theirs.count; j += kTileRun) {
          for (std::int64_t i = block; i < block_end; i += kTileLines) {
            body(StridedTile{from + j * theirs.from_step + i * last.from_step,
                             to + j * theirs.to_step + i * last.to_step,
                             {std::min(kTileLines, block_end - i), last.from_step, last.to_step},
                             {std::min(kTileRun, theirs.count - j), theirs.from_step, theirs.to_step}});
          }
        }
      }
    } else {
      body(StridedTile{from, to, kOne, last});
    }
    std::size_t dim = outer;
    while (dim > 0 && ++at[dim - 1] == copy.dims[dim - 1].count) at[--dim] = 0;
    if (dim == 0) return;
  }
}

}  // namespace engine::hf

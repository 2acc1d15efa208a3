// Copies between our row-major boxes and their tensors, whose elements lie at other distances: runs along one dim, in an order
// that keeps both sides' cache lines.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "engine/hf/weights.h"

namespace engine::hf {

// Elements from, from + from_step, … to to, to + to_step, …
struct StridedRun {
  std::int64_t from, from_step;
  std::int64_t to, to_step;
  std::int64_t count;
};

struct StridedDim {
  std::int64_t count, from_step, to_step;
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

// Where no dim is the inner one of both sides, runs are cut into pieces, so that what one side reads of a cache line at a time
// is read soon again.
template <typename Body>
void ForEachStridedRun(StridedCopy copy, const Body& body) {
  constexpr std::int64_t kPiece = 32;
  if (copy.dims.empty()) return body(StridedRun{copy.from, 1, copy.to, 1, 1});
  // The inner dim of theirs goes right before ours, and of both pieces are walked.
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
      for (std::int64_t i = 0; i < last.count; i += kPiece) {
        for (std::int64_t j = 0; j < theirs.count; ++j) {
          body(StridedRun{from + j * theirs.from_step + i * last.from_step, last.from_step,
                          to + j * theirs.to_step + i * last.to_step, last.to_step,
                          std::min(kPiece, last.count - i)});
        }
      }
    } else {
      body(StridedRun{from, last.from_step, to, last.to_step, last.count});
    }
    std::size_t dim = outer;
    while (dim > 0 && ++at[dim - 1] == copy.dims[dim - 1].count) at[--dim] = 0;
    if (dim == 0) return;
  }
}

}  // namespace engine::hf

// Windows of rows: where buffers hold fewer rows (graph/rows.h) than a rank's experts might get, the rows are worked on in
// passes, each of them on one window.
//
// Windows begin at multiples of WindowRows and follow each other without gaps, so a group of rows may lie in several. How many
// passes there are follows from the bound of rows, not from a batch's choices; a window without rows is left at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/base/shape.h"
#include "engine/graph/rows.h"

namespace engine::graph {

// Each pass is launched whether or not its window has rows.
inline constexpr std::int64_t kMostPasses = 64;

// Rows of each of `passes` windows of `bound` rows, which is a multiple of kRowAlignment as the result is: passes times the
// result are at least the bound.
inline std::int64_t WindowRows(std::int64_t bound, std::int64_t passes) {
  const std::int64_t blocks = bound / kRowAlignment;
  return (blocks + passes - 1) / passes * kRowAlignment;
}

// How many times the mean load of a rank its worst load is, where each of T tokens goes to k of `experts` experts and the
// rank has `here` of them.
inline double WorstOverMean(std::int64_t k, std::int64_t experts, std::int64_t here) {
  return static_cast<double>(std::min(k, here)) * static_cast<double>(experts) /
         (static_cast<double>(k) * static_cast<double>(here));
}

// The passes whose windows hold at least `budget` times the mean load; at least 1.
inline double PassesOf(double budget, std::int64_t k, std::int64_t experts, std::int64_t here) {
  return std::max(1.0, std::floor(WorstOverMean(k, experts, here) / budget * (1 + 1e-12)));
}

// Of the ops on windows (ops/expert_passes.cpp), on a rank.
struct WindowSizes {
  std::int64_t choices = 0;  // N: of all tokens
  std::int64_t k = 0;
  std::int64_t bound = 0;    // of rows
  std::int64_t rows = 0;     // R: of a window
  std::int64_t windows = 0;  // that are needed: no more than the passes
  std::int64_t experts = 0;  // E
  std::int64_t width = 0;    // D: elements of a token
  std::int64_t hidden = 0;   // of a row of the first product: F, with a gate 2·F
  std::int64_t ffn = 0;      // F
};

// Shapes of choice [b, …, k], choice_of [bound], w1 [E, (2,) F, D…] and w2 [E, D…, F].
inline WindowSizes SizesOfWindows(const Shape& choice, const Shape& choice_of, const Shape& w1,
                                  const Shape& w2, std::int64_t passes) {
  WindowSizes sizes;
  sizes.choices = choice.elements();
  sizes.k = choice[choice.rank() - 1];
  sizes.bound = choice_of[0];
  sizes.rows = WindowRows(sizes.bound, passes);
  sizes.windows = sizes.rows > 0 ? (sizes.bound + sizes.rows - 1) / sizes.rows : 0;
  sizes.experts = w1[0];
  sizes.ffn = w2[w2.rank() - 1];
  sizes.width = w2.elements(1, w2.rank() - 1);
  sizes.hidden = w1.elements(1, w1.rank()) / std::max<std::int64_t>(sizes.width, 1);
  return sizes;
}

// Where the buffers of a pass lie in its scratch, one behind the other. A rule of scratch asks for `bytes`, a kernel for places.
class ScratchPlaces {
 public:
  explicit ScratchPlaces(std::byte* base = nullptr) : base_(base) {}

  // `count` elements of `size` bytes, at a multiple of 256 bytes.
  void* Take(std::int64_t count, std::int64_t size) {
    constexpr std::int64_t kAlignment = 256;
    std::byte* const place = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (count * size + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::int64_t bytes_ = 0;
};

// The buffers of one window, with elements of `size` bytes. Those of the backward pass are null in the forward pass.
struct WindowBuffers {
  void* rows = nullptr;         // [R, D]: of tokens; in the forward pass then the results
  void* hidden = nullptr;       // [R, hidden]: the first product; then its gradient
  void* activated = nullptr;    // [R, F]
  void* d_rows = nullptr;       // [R, D]: gradients of the results; then of the tokens' rows
  void* d_activated = nullptr;  // [R, F]
  void* groups = nullptr;       // i32 [windows, E, 2]: of each window, rows counted from its first one

  WindowBuffers(const WindowSizes& sizes, std::int64_t size, bool backward, ScratchPlaces* scratch)
      : rows(scratch->Take(sizes.rows * sizes.width, size)),
        hidden(scratch->Take(sizes.rows * sizes.hidden, size)),
        activated(scratch->Take(sizes.rows * sizes.ffn, size)),
        groups(scratch->Take(sizes.windows * sizes.experts * 2, sizeof(std::int32_t))) {
    if (!backward) return;
    d_rows = scratch->Take(sizes.rows * sizes.width, size);
    d_activated = scratch->Take(sizes.rows * sizes.ffn, size);
  }
};

// What lies in the window of `rows` rows from `first` on of a group of `count` rows from `group` on: its first row, counted from the
// window's first one, and number of rows.
struct RowsInWindow {
  std::int64_t first, count;
};
constexpr RowsInWindow InWindow(std::int64_t group, std::int64_t count, std::int64_t first,
                                std::int64_t rows) {
  const std::int64_t from = std::clamp(group, first, first + rows);
  const std::int64_t to = std::clamp(group + count, first, first + rows);
  return {from - first, std::max<std::int64_t>(to - from, 0)};
}

}  // namespace engine::graph

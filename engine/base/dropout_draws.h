// Which elements dropout drops: the same in every backend and layout, and eight draws from one Philox block, so that a thread
// which has 16 bytes of 16-bit elements draws one block for them.
//
// A draw has 16 bits. Element `index` of a stream, counted in the whole tensor, has the block whose counter is
//   c0, c1 = ⌊index / 8⌋,  c2, c3 = the iteration,
// and in it the low or high half (index mod 2) of word ⌊index mod 8 / 2⌋. Attention has a layout of its own
// (base/attention_draws.h), and all else is as here.
//
// Philox4x32 with seven rounds (Salmon et al., SC 2011: the fewest that pass BigCrush, of which ten have a margin).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/base/philox.h"

namespace engine {

// Kept in checkpoints, so that a run that goes on with other draws says so. 1, until 2026-11-25: a word of Philox4x32 with ten
// rounds an element.
inline constexpr std::int64_t kDropoutDrawsVersion = 2;

inline constexpr int kDropoutDrawRounds = 7;
inline constexpr int kDrawsOfBlock = 8;
inline constexpr std::uint32_t kDropoutDraws = 1U << 16;  // different ones

// Dropout of probability p in (0, 1), which is rounded to a multiple of 2⁻¹⁶, but not to 0 or 1.
struct Dropping {
  std::uint32_t below;  // smaller draws are dropped
  double scale;         // of what is kept: 1 / (1 − below / 2¹⁶), so that the mean is what it was

  static Dropping Of(double p) {
    const double draws = std::clamp(std::round(p * kDropoutDraws), 1.0, kDropoutDraws - 1.0);
    return {static_cast<std::uint32_t>(draws), kDropoutDraws / (kDropoutDraws - draws)};
  }
};

// The draws of elements 8·eight to 8·eight + 7, two a word, the low half first.
constexpr std::array<std::uint32_t, 4> DropoutDraws8(PhiloxKey key, std::uint64_t iteration,
                                                     std::uint64_t eight) {
  return Philox4x32<kDropoutDrawRounds>(key, eight, iteration);
}

constexpr std::uint32_t DropoutDraw(PhiloxKey key, std::uint64_t iteration, std::uint64_t index) {
  const std::uint32_t word = DropoutDraws8(key, iteration, index / kDrawsOfBlock)[index % kDrawsOfBlock / 2];
  return index % 2 == 0 ? word & 0xFFFFU : word >> 16;
}

}  // namespace engine

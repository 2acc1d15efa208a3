// Which probabilities attention's dropout drops: the same in every backend and layout, and eight draws from one Philox block,
// so that a kernel which has a tile of probabilities in registers draws at little cost.
//
// A draw has 16 bits. For the query at position i and the key at position j, the counter of its block is
//   c0 = 32·⌊j / 16⌋ + 4·(i mod 8) + ⌊(j mod 8) / 2⌋,  c1 = ⌊i / 16⌋,  c2 = sample·heads + head,  c3 = the iteration,
// and in the block, the draw is the low or high half (j mod 2) of word 2·(⌊i / 8⌋ mod 2) + ⌊j / 8⌋ mod 2. So the 16 × 16 pairs
// of 16 queries and 16 keys are 32 blocks, one for each lane of a warp that multiplies matrices of that size, whose eight
// sums are the block's pairs.
//
// Philox4x32 with seven rounds (Salmon et al., SC 2011: the fewest that pass BigCrush, of which ten have a margin).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/base/philox.h"

namespace engine {

// Kept in checkpoints, so that a run that goes on with other draws says so. 1, until 2026-11-25: a word of Philox4x32 with ten
// rounds a pair.
inline constexpr std::int64_t kAttentionDrawsVersion = 2;

inline constexpr int kAttentionDrawRounds = 7;
inline constexpr std::uint32_t kAttentionDraws = 1U << 16;  // different ones

// Dropout of probability p in (0, 1), which is rounded to a multiple of 2⁻¹⁶, but not to 0 or 1.
struct AttentionDropping {
  std::uint32_t below;  // smaller draws are dropped
  double scale;         // of what is kept: 1 / (1 − below / 2¹⁶), so that the mean is what it was

  static AttentionDropping Of(double p) {
    const double draws = std::clamp(std::round(p * kAttentionDraws), 1.0, kAttentionDraws - 1.0);
    return {static_cast<std::uint32_t>(draws), kAttentionDraws / (kAttentionDraws - draws)};
  }
};

// Blocks are numbered by the head of all heads of all samples, sample·heads + head.
constexpr std::array<std::uint32_t, 4> AttentionDrawBlock(PhiloxKey key, std::uint64_t iteration,
                                                          std::uint64_t head, std::uint64_t query,
                                                          std::uint64_t key_position) {
  const std::uint64_t c0 = key_position / 16 * 32 + query % 8 * 4 + key_position % 8 / 2;
  return Philox4x32<kAttentionDrawRounds>(key, (c0 & 0xFFFFFFFFU) | query / 16 << 32,
                                          (head & 0xFFFFFFFFU) | iteration << 32);
}

constexpr std::uint32_t AttentionDraw(PhiloxKey key, std::uint64_t iteration, std::uint64_t head,
                                      std::uint64_t query, std::uint64_t key_position) {
  const std::uint32_t word =
      AttentionDrawBlock(key, iteration, head, query, key_position)[query / 8 % 2 * 2 + key_position / 8 % 2];
  return key_position % 2 == 0 ? word & 0xFFFFU : word >> 16;
}

// Those of a query and keys [16·sixteen, 16·sixteen + 16), which are in four blocks.
constexpr std::array<std::uint32_t, 16> AttentionDraws16(PhiloxKey key, std::uint64_t iteration,
                                                         std::uint64_t head, std::uint64_t query,
                                                         std::uint64_t sixteen) {
  std::array<std::uint32_t, 16> draws{};
  for (std::uint64_t two = 0; two < 4; ++two) {
    const auto words = AttentionDrawBlock(key, iteration, head, query, 16 * sixteen + 2 * two);
    for (std::uint64_t eight = 0; eight < 2; ++eight) {
      const std::uint32_t word = words[query / 8 % 2 * 2 + eight];
      draws[8 * eight + 2 * two] = word & 0xFFFFU;
      draws[8 * eight + 2 * two + 1] = word >> 16;
    }
  }
  return draws;
}

}  // namespace engine

// Which probabilities attention's dropout drops: the same in every backend and layout, and eight draws from one Philox block,
// so that a kernel which has a tile of probabilities in registers draws at little cost.
//
// A draw has 16 bits. For the query at position i and the key at position j, the counter of its block is
//   c0 = 32·⌊j / 16⌋ + 4·(i mod 8) + ⌊(j mod 8) / 2⌋,  c1 = ⌊i / 16⌋,  c2 = sample·heads + head,  c3 = the iteration,
// and in the block, the draw is the low or high half (j mod 2) of word 2·(⌊i / 8⌋ mod 2) + ⌊j / 8⌋ mod 2. So the 16 × 16 pairs
// of 16 queries and 16 keys are 32 blocks, one for each lane of a warp that multiplies matrices of that size, whose eight
// sums are the block's pairs.
//
// Probabilities, scales and rounds of Philox are those of all dropout (base/dropout_draws.h).
#pragma once

#include <array>
#include <cstdint>

#include "engine/base/dropout_draws.h"

namespace engine {

// Kept in checkpoints, so that a run that goes on with other draws says so. 1, until 2026-11-25: a word of Philox4x32 with ten
// rounds a pair.
inline constexpr std::int64_t kAttentionDrawsVersion = 2;

// Blocks are numbered by the head of all heads of all samples, sample·heads + head.
constexpr std::array<std::uint32_t, 4> AttentionDrawBlock(PhiloxKey key, std::uint64_t iteration,
                                                          std::uint64_t head, std::uint64_t query,
                                                          std::uint64_t key_position) {
  const std::uint64_t c0 = key_position / 16 * 32 + query % 8 * 4 + key_position % 8 / 2;
  return Philox4x32<kDropoutDrawRounds>(key, (c0 & 0xFFFFFFFFU) | query / 16 << 32,
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

// Philox4x32, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), with ten
// rounds unless others are named. A draw is a pure function of (key, counter), so weights, masks and samples are the same in every
// parallel layout: the key says (seed, which tensor), the counter says which logical element.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace engine {

struct PhiloxKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

// Key of one stream of draws: FNV-1a of the name, mixed with the recipe's seed by one splitmix64 round each.
constexpr PhiloxKey MakePhiloxKey(std::uint64_t seed, std::string_view stream_name) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (char c : stream_name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  std::uint64_t mixed = hash + 0x9E3779B97F4A7C15ULL * (seed + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
  mixed ^= mixed >> 31;
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

inline constexpr int kPhiloxRounds = 10;

// Four 32-bit words for the 128-bit counter (block_low, block_high, c2, c3).
template <int kRounds = kPhiloxRounds>
constexpr std::array<std::uint32_t, 4> Philox4x32(PhiloxKey key, std::uint64_t block, std::uint64_t high) {
  std::uint32_t c0 = static_cast<std::uint32_t>(block);
  std::uint32_t c1 = static_cast<std::uint32_t>(block >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(high);
  std::uint32_t c3 = static_cast<std::uint32_t>(high >> 32);
  std::uint32_t k0 = key.low;
  std::uint32_t k1 = key.high;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(product1);
    c3 = static_cast<std::uint32_t>(product0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {c0, c1, c2, c3};
}

inline constexpr std::int64_t kPhiloxBlocks = 64;  // drawn at once

// Philox4x32 of the blocks [first, first + 64), a round of all of them at a time so that the loops vectorise:
// words[4·b + i] is word i of block first + b. Inlined always: into the caller's instruction set.
template <int kRounds = kPhiloxRounds>
[[gnu::always_inline]] inline void DrawPhiloxBlocks(PhiloxKey key, std::uint64_t first, std::uint64_t high,
                                                    std::uint32_t* words) {
  std::uint32_t c0[kPhiloxBlocks], c1[kPhiloxBlocks], c2[kPhiloxBlocks], c3[kPhiloxBlocks];
  for (std::int64_t b = 0; b < kPhiloxBlocks; ++b) {
    const std::uint64_t block = first + static_cast<std::uint64_t>(b);
    c0[b] = static_cast<std::uint32_t>(block);
    c1[b] = static_cast<std::uint32_t>(block >> 32);
    c2[b] = static_cast<std::uint32_t>(high);
    c3[b] = static_cast<std::uint32_t>(high >> 32);
  }
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const std::uint32_t k0 = key.low + round * 0x9E3779B9U;
    const std::uint32_t k1 = key.high + round * 0xBB67AE85U;
    for (std::int64_t b = 0; b < kPhiloxBlocks; ++b) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c0[b];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c2[b];
      c0[b] = static_cast<std::uint32_t>(product1 >> 32) ^ c1[b] ^ k0;
      c2[b] = static_cast<std::uint32_t>(product0 >> 32) ^ c3[b] ^ k1;
      c1[b] = static_cast<std::uint32_t>(product1);
      c3[b] = static_cast<std::uint32_t>(product0);
    }
  }
  for (std::int64_t b = 0; b < kPhiloxBlocks; ++b) {
    words[4 * b] = c0[b];
    words[4 * b + 1] = c1[b];
    words[4 * b + 2] = c2[b];
    words[4 * b + 3] = c3[b];
  }
}

// Word of element `index` in a stream; `epoch` separates draws of the same element (the iteration, say).
constexpr std::uint32_t PhiloxWord(PhiloxKey key, std::uint64_t index, std::uint64_t epoch = 0) {
  return Philox4x32(key, index >> 2, epoch)[index & 3];
}

// Uniform in [0, 1) with 24 bits, exact in float32.
constexpr float UniformFromWord(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24F; }

// Two standard normals of two words, by Box-Muller in float64: √(−2 ln u) · {cos 2πt, sin 2πt} with u and t
// the words, + ½, · 2⁻³². Logarithm, sine and cosine are series of our own (philox.cpp), so the bits depend
// on no library, instruction set or compiler.
std::array<double, 2> NormalPair(std::uint32_t u_word, std::uint32_t t_word);

// Standard normal of element `index`: one of the two of its pair of words.
double PhiloxNormal(PhiloxKey key, std::uint64_t index);

// out[i] = float(std · PhiloxNormal(key, first + i)): the same bits, many of them at once.
void PhiloxNormals(PhiloxKey key, std::uint64_t first, double std, std::span<float> out);

}  // namespace engine

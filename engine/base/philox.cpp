// Normal draws. The one definition of a number is BoxMuller, which has no branches and calls no function of
// the C library: a loop of it vectorises. Compiled with -ffp-contract=off (CMakeLists.txt), so that each
// operation rounds by itself, as in every other instruction set.
#include "engine/base/philox.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/base/clones.h"

namespace engine {
namespace {

// n < 2^52 as a double, by bits: there is no vector instruction for it before AVX-512.
[[gnu::always_inline]] inline double FromInteger(std::uint64_t n) {
  return std::bit_cast<double>(0x4330000000000000U | n) - 0x1p52;
}

// ln x of 0 < x < 1, to about 2⁻⁵² of it. x = 2^e · m with m in [√½, √2) and ln m = 2 atanh(s), s = (m − 1) /
// (m + 1). |s| < 0.172, so the first term of atanh's series that is left out, s²³ / 23, is below 2⁻⁵⁹ · s.
[[gnu::always_inline]] inline double Logarithm(double x) {
  constexpr std::uint64_t kRootOfHalf = 0x3FE6A09E667F3BCD;
  constexpr std::uint64_t kBias = 1024;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t biased = (bits - kRootOfHalf + (kBias << 52)) >> 52;  // e + bias
  const auto m = std::bit_cast<double>(bits - ((biased - kBias) << 52));
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 1.0 / 21;
  sum = sum * z + 1.0 / 19;
  sum = sum * z + 1.0 / 17;
  sum = sum * z + 1.0 / 15;
  sum = sum * z + 1.0 / 13;
  sum = sum * z + 1.0 / 11;
  sum = sum * z + 1.0 / 9;
  sum = sum * z + 1.0 / 7;
  sum = sum * z + 1.0 / 5;
  sum = sum * z + 1.0 / 3;
  constexpr double kLn2 = 0.693147180559945309417;
  return (FromInteger(biased) - static_cast<double>(kBias)) * kLn2 + 2 * (s + s * z * sum);
}

struct Pair {
  double cosine, sine;
};

// Of (word + ½) · 2⁻³² turns. A number of quarter turns and a rest x of at most an eighth, |x| <= π/4: the
// terms that the series leave out, x¹⁷ / 17! and x¹⁸ / 18!, are below 2⁻⁵³ of the sums.
[[gnu::always_inline]] inline Pair Turned(std::uint32_t word) {
  const std::uint64_t quarter = (std::uint64_t{word} + (std::uint64_t{1} << 29)) >> 30;  // 0 to 4
  constexpr double kUnit = 6.283185307179586476925 * 0x1p-32;
  const double x = (FromInteger(word) + 0.5 - FromInteger(quarter << 30)) * kUnit;
  const double z = x * x;
  double sine = -1.0 / 1307674368000;  // 15!
  sine = sine * z + 1.0 / 6227020800;
  sine = sine * z - 1.0 / 39916800;
  sine = sine * z + 1.0 / 362880;
  sine = sine * z - 1.0 / 5040;
  sine = sine * z + 1.0 / 120;
  sine = sine * z - 1.0 / 6;
  sine = x + x * z * sine;
  double cosine = 1.0 / 20922789888000;  // 16!
  cosine = cosine * z - 1.0 / 87178291200;
  cosine = cosine * z + 1.0 / 479001600;
  cosine = cosine * z - 1.0 / 3628800;
  cosine = cosine * z + 1.0 / 40320;
  cosine = cosine * z - 1.0 / 720;
  cosine = cosine * z + 1.0 / 24;
  cosine = cosine * z - 1.0 / 2;
  cosine = 1 + z * cosine;
  const auto c = std::bit_cast<std::uint64_t>(cosine);
  const auto s = std::bit_cast<std::uint64_t>(sine);
  const std::uint64_t swapped = (c ^ s) & (0 - (quarter & 1));
  return {std::bit_cast<double>(c ^ swapped ^ (((quarter + 1) & 2) << 62)),
          std::bit_cast<double>(s ^ swapped ^ ((quarter & 2) << 62))};
}

[[gnu::always_inline]] inline Pair BoxMuller(std::uint32_t u_word, std::uint32_t t_word) {
  const double radius = std::sqrt(-2 * Logarithm((FromInteger(u_word) + 0.5) * 0x1p-32));
  const Pair turned = Turned(t_word);
  return {radius * turned.cosine, radius * turned.sine};
}

constexpr int kNormals = 4 * kPhiloxBlocks;

// The numbers of the blocks [first, first + 64).
ENGINE_CLONES void NormalsOfBlocks(PhiloxKey key, std::uint64_t first, double std, float* out) {
  std::uint32_t words[kNormals];
  DrawPhiloxBlocks(key, first, 0, words);
  for (int i = 0; i < kNormals; i += 2) {
    const Pair pair = BoxMuller(words[i], words[i + 1]);
    out[i] = static_cast<float>(std * pair.cosine);
    out[i + 1] = static_cast<float>(std * pair.sine);
  }
}

}  // namespace

ENGINE_CLONES std::array<double, 2> NormalPair(std::uint32_t u_word, std::uint32_t t_word) {
  const Pair pair = BoxMuller(u_word, t_word);
  return {pair.cosine, pair.sine};
}

double PhiloxNormal(PhiloxKey key, std::uint64_t index) {
  const std::array<std::uint32_t, 4> words = Philox4x32(key, index >> 2, 0);
  const auto word = static_cast<size_t>(index & 2);
  return NormalPair(words[word], words[word + 1])[index & 1];
}

void PhiloxNormals(PhiloxKey key, std::uint64_t first, double std, std::span<float> out) {
  while (!out.empty()) {
    const auto skip = static_cast<size_t>(first & 3);
    const size_t count = std::min(out.size(), kNormals - skip);
    if (count == kNormals) {
      NormalsOfBlocks(key, first >> 2, std, out.data());
    } else {
      float numbers[kNormals];
      NormalsOfBlocks(key, first >> 2, std, numbers);
      std::copy_n(numbers + skip, count, out.data());
    }
    first += count;
    out = out.subspan(count);
  }
}

}  // namespace engine

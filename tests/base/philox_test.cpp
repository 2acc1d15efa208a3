#include "engine/base/philox.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace engine {

// Known-answer vectors of the authors' Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST_CASE("Philox4x32-10 gives the published vectors") {
  const auto zero = Philox4x32({0, 0}, 0, 0);
  CHECK(zero[0] == 0x6627e8d5U);
  CHECK(zero[1] == 0xe169c58dU);
  CHECK(zero[2] == 0xbc57ac4cU);
  CHECK(zero[3] == 0x9b00dbd8U);
  const std::uint64_t ones = ~std::uint64_t{0};
  const auto all = Philox4x32({0xffffffffU, 0xffffffffU}, ones, ones);
  CHECK(all[0] == 0x408f276dU);
  CHECK(all[1] == 0x41c83b0eU);
  CHECK(all[2] == 0xa20bc7c6U);
  CHECK(all[3] == 0x6d5451fdU);
}

TEST_CASE("normals have the moments of N(0, 1)") {
  const PhiloxKey key = MakePhiloxKey(1234, "a tensor");
  constexpr int kDraws = 100000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = PhiloxNormal(key, static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  // Five standard errors: 5/sqrt(n) for the mean, 5·sqrt(2/n) for the second moment.
  CHECK(std::abs(sum / kDraws) < 5.0 / std::sqrt(kDraws));
  CHECK(std::abs(squares / kDraws - 1.0) < 5.0 * std::sqrt(2.0 / kDraws));
}

// Box-Muller by the C library, u and t being exact in float64. The angle in the wider type, where it has one:
// its rounding is what is left of a cosine near 0.
TEST_CASE("pairs of normals are those of Box-Muller") {
  constexpr std::uint32_t kSamples = std::uint32_t{1} << 22;
  double worst_of_radius = 0, worst = 0;
  const auto compare = [&](std::uint32_t u_word, std::uint32_t t_word) {
    const double radius = std::sqrt(-2 * std::log((u_word + 0.5) * 0x1p-32));
    const long double angle = 6.283185307179586476925286766559L * ((t_word + 0.5L) * 0x1p-32L);
    const std::array<double, 2> pair = NormalPair(u_word, t_word);
    const double exact[2] = {radius * static_cast<double>(std::cos(angle)),
                             radius * static_cast<double>(std::sin(angle))};
    for (size_t i = 0; i < 2; ++i) {
      const double error = std::abs(pair[i] - exact[i]);
      worst_of_radius = std::max(worst_of_radius, error / radius);
      worst = std::max(worst, error / std::abs(exact[i]));
    }
  };
  for (std::uint32_t i = 0; i < kSamples; ++i) {  // u evenly, with other low bits each time; t in a jumble
    compare((i << 10) | (i * 0x9E3779B9U) >> 22, i * 0x85EBCA6BU);
  }
  const auto around = [](std::uint32_t center, auto visit) {
    for (std::uint32_t i = 0; i < 64; ++i) visit(center - 32 + i);
  };
  for (std::uint32_t eighth = 0; eighth < 8; ++eighth) {  // all borders, and the ends of (0, 1)
    around(eighth << 29, [&](std::uint32_t t_word) { compare(12345, t_word); });
    around(eighth << 29, [&](std::uint32_t u_word) { compare(u_word, 12345); });
  }
  // Ten roundings of 2⁻⁵³, of numbers up to the radius: those of the reference and of our own.
  CHECK(worst_of_radius < 10 * 0x1p-53);
  // Of the number itself: a float's last place is 2⁻²⁴ of it. t ≥ ½ · 2⁻³² of a turn from where it is 0, and
  // the angle's rounding is 2⁻⁶⁴ of up to a turn: 2⁻³¹.
  CHECK(worst < 0x1p-30);
}

// From every place in a block of four, over the ends of blocks and of stretches; not one number more is
// written.
TEST_CASE("normals by the span are the normals one by one, bit for bit") {
  const PhiloxKey key = MakePhiloxKey(99, "a tensor");
  const auto check = [&](std::uint64_t start, size_t length, double std) {
    CAPTURE(start);
    CAPTURE(length);
    constexpr float kUntouched = 77;
    std::vector<float> out(length + 2, kUntouched);
    PhiloxNormals(key, start, std, std::span(out).subspan(1, length));
    CHECK(out.front() == kUntouched);
    CHECK(out.back() == kUntouched);
    size_t wrong = 0;
    for (size_t i = 0; i < length; ++i) {
      const auto expected = static_cast<float>(std * PhiloxNormal(key, start + i));
      wrong += std::bit_cast<std::uint32_t>(out[i + 1]) == std::bit_cast<std::uint32_t>(expected) ? 0U : 1U;
    }
    CHECK(wrong == 0);
  };
  for (std::uint64_t base : {std::uint64_t{0}, (std::uint64_t{1} << 34) - 8, std::uint64_t{1} << 40}) {
    for (std::uint64_t start = 0; start < 4; ++start) {
      for (double std : {1.0, 0.02}) {
        for (size_t length = 0; length <= 9; ++length) check(base + start, length, std);
        for (size_t length : {251U, 252U, 253U, 256U, 257U, 511U, 516U, 3000U})
          check(base + start, length, std);
      }
    }
  }
}

// Against the normal distribution function, on a million numbers whose bits are the same everywhere.
TEST_CASE("normals are distributed like N(0, 1), tails too") {
  constexpr size_t kDraws = size_t{1} << 20;
  const auto n = static_cast<double>(kDraws);
  std::vector<float> draws(kDraws);
  PhiloxNormals(MakePhiloxKey(1234, "another tensor"), 0, 1.0, draws);
  std::sort(draws.begin(), draws.end());
  double distance = 0;  // of Kolmogorov and Smirnov
  double powers[5] = {};
  for (size_t i = 0; i < kDraws; ++i) {
    const auto x = static_cast<double>(draws[i]);
    const double below = 0.5 * std::erfc(-x * std::sqrt(0.5));
    distance =
        std::max({distance, below - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - below});
    for (int power = 1; power <= 4; ++power) powers[power] += std::pow(x, power) / n;
  }
  CHECK(distance * std::sqrt(n) < 1.95);  // one sample of N(0, 1) in 1000 is farther away
  // Four standard errors: √(Var x^k / n).
  CHECK(std::abs(powers[1]) < 4 * std::sqrt(1 / n));
  CHECK(std::abs(powers[2] - 1) < 4 * std::sqrt(2 / n));
  CHECK(std::abs(powers[3]) < 4 * std::sqrt(15 / n));
  CHECK(std::abs(powers[4] - 3) < 4 * std::sqrt(96 / n));
  for (double tail : {2.0, 3.0, 4.0, 4.5}) {
    CAPTURE(tail);
    const double expected =
        n * std::erfc(tail * std::sqrt(0.5)) / 2;  // on each side; its variance is below it
    const auto low = std::lower_bound(draws.begin(), draws.end(), static_cast<float>(-tail)) - draws.begin();
    const auto high = draws.end() - std::upper_bound(draws.begin(), draws.end(), static_cast<float>(tail));
    CHECK(std::abs(static_cast<double>(low) - expected) < 4 * std::sqrt(expected));
    CHECK(std::abs(static_cast<double>(high) - expected) < 4 * std::sqrt(expected));
  }
  // Numbers of a pair, and of neighbouring pairs, do not go together: a mean of products has variance 1 / n.
  std::vector<float> in_order(kDraws);
  PhiloxNormals(MakePhiloxKey(1234, "another tensor"), 0, 1.0, in_order);
  for (size_t lag = 1; lag <= 4; ++lag) {
    CAPTURE(lag);
    double together = 0;
    for (size_t i = lag; i < kDraws; ++i) {
      together += static_cast<double>(in_order[i]) * static_cast<double>(in_order[i - lag]) / n;
    }
    CHECK(std::abs(together) < 4 / std::sqrt(n));
  }
}

// The bits on every machine, whatever its library, compiler and instruction set: FNV-1a of 4096 numbers.
TEST_CASE("normals have the bits that they always had") {
  std::uint64_t hash = 14695981039346656037ULL;
  for (std::uint64_t i = 0; i < 4096; ++i) {
    const double draw = PhiloxNormal(MakePhiloxKey(7, "embedding.tokens"), i);
    hash = (hash ^ std::bit_cast<std::uint64_t>(draw)) * 1099511628211ULL;
  }
  CHECK(hash == 1909730952135313007ULL);
}

TEST_CASE("streams of different names and seeds differ") {
  CHECK(PhiloxWord(MakePhiloxKey(1, "a"), 0) != PhiloxWord(MakePhiloxKey(1, "b"), 0));
  CHECK(PhiloxWord(MakePhiloxKey(1, "a"), 0) != PhiloxWord(MakePhiloxKey(2, "a"), 0));
  CHECK(PhiloxWord(MakePhiloxKey(1, "a"), 7, 1) != PhiloxWord(MakePhiloxKey(1, "a"), 7, 2));
}

}  // namespace engine

#include "engine/base/attention_draws.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

namespace engine {

// Known-answer vectors of the authors' Random123 distribution (kat_vectors, philox4x32 7 rounds).
TEST_CASE("Philox4x32-7 gives the published vectors") {
  CHECK(Philox4x32<7>({0, 0}, 0, 0) ==
        std::array<std::uint32_t, 4>{0x5f6fb709U, 0x0d893f64U, 0x4f121f81U, 0x4f730a48U});
  const std::uint64_t ones = ~std::uint64_t{0};
  CHECK(Philox4x32<7>({0xffffffffU, 0xffffffffU}, ones, ones) ==
        std::array<std::uint32_t, 4>{0x5207ddc2U, 0x45165e59U, 0x4d8ee751U, 0x8c52f662U});
}

TEST_CASE("the draws of a query and sixteen keys are those of each pair") {
  const PhiloxKey key = MakePhiloxKey(5, "core");
  for (const std::uint64_t query : {0, 7, 8, 19, 1023, 131072}) {
    for (const std::uint64_t sixteen : {0, 1, 77, 8191}) {
      const auto draws = AttentionDraws16(key, 3, 12, query, sixteen);
      for (std::uint64_t j = 0; j < 16; ++j)
        CHECK(draws.at(j) == AttentionDraw(key, 3, 12, query, 16 * sixteen + j));
    }
  }
}

// Every half of every block is the draw of one pair alone.
TEST_CASE("no two pairs of sixteen queries and sixteen keys share a draw") {
  std::map<std::array<std::uint32_t, 4>, std::set<std::uint64_t>> places;  // by block
  const PhiloxKey key = MakePhiloxKey(5, "core");
  for (std::uint64_t query = 16; query < 32; ++query) {
    for (std::uint64_t j = 32; j < 48; ++j)
      places[AttentionDrawBlock(key, 0, 0, query, j)].insert(query / 8 % 2 * 4 + j / 8 % 2 * 2 + j % 2);
  }
  CHECK(places.size() == 32);
  for (const auto& [block, halves] : places) CHECK(halves.size() == 8);
}

// Each within five standard deviations of what independent draws give.
TEST_CASE("draws are uniform, and those of neighbours are independent") {
  constexpr std::int64_t kQueries = 512;
  constexpr std::int64_t kKeys = 512;
  constexpr double kCount = kQueries * kKeys;
  const PhiloxKey key = MakePhiloxKey(1234, "core");
  constexpr std::uint32_t kBelow = 6554;  // of 2¹⁶: 0.1
  constexpr double kP = kBelow / 65536.0;
  std::array<double, 256> high{};
  std::array<double, 256> low{};
  double dropped = 0;
  using Pair = std::function<std::uint32_t(std::uint64_t query, std::uint64_t j)>;
  const std::array<Pair, 6> neighbours = {
      [&](std::uint64_t i, std::uint64_t j) { return AttentionDraw(key, 9, 3, i, j + 1); },
      [&](std::uint64_t i, std::uint64_t j) { return AttentionDraw(key, 9, 3, i + 1, j); },
      [&](std::uint64_t i, std::uint64_t j) { return AttentionDraw(key, 9, 3, i + 8, j); },
      [&](std::uint64_t i, std::uint64_t j) { return AttentionDraw(key, 9, 3, i, j + 16); },
      [&](std::uint64_t i, std::uint64_t j) { return AttentionDraw(key, 9, 4, i, j); },
      [&](std::uint64_t i, std::uint64_t j) { return AttentionDraw(key, 10, 3, i, j); },
  };
  std::array<double, 6> both{};
  for (std::uint64_t i = 0; i < kQueries; ++i) {
    for (std::uint64_t j = 0; j < kKeys; ++j) {
      const std::uint32_t draw = AttentionDraw(key, 9, 3, i, j);
      ++high.at(draw >> 8);
      ++low.at(draw & 0xFFU);
      if (draw >= kBelow) continue;
      ++dropped;
      for (std::size_t n = 0; n < neighbours.size(); ++n)
        both.at(n) += neighbours.at(n)(i, j) < kBelow ? 1 : 0;
    }
  }
  CHECK(std::abs(dropped - kP * kCount) < 5 * std::sqrt(kCount * kP * (1 - kP)));
  for (const double count : both) CHECK(std::abs(count - kP * kP * kCount) < 5 * std::sqrt(kCount * kP * kP));
  for (const auto& counts : {high, low}) {
    double chi2 = 0;
    for (const double count : counts)
      chi2 += (count - kCount / 256) * (count - kCount / 256) / (kCount / 256);
    CHECK(std::abs(chi2 - 255) < 5 * std::sqrt(2.0 * 255));
  }
}

}  // namespace engine

#include "engine/base/dropout_draws.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

namespace engine {

// The words are Philox4x32-7's, whose published vectors attention_draws_test.cpp has.
TEST_CASE("eight elements have the halves of one Philox block, in order") {
  const PhiloxKey key = MakePhiloxKey(7, "layers.3.mlp.dropout");
  for (const std::uint64_t eight : {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{1} << 40}) {
    const auto words = Philox4x32<7>(key, eight, 11);
    CHECK(DropoutDraws8(key, 11, eight) == words);
    for (std::uint64_t i = 0; i < 8; ++i) {
      CAPTURE(i);
      CHECK(DropoutDraw(key, 11, 8 * eight + i) == (words.at(i / 2) >> (i % 2 * 16) & 0xFFFFU));
    }
  }
}

TEST_CASE("no two elements share a place in a block") {
  const PhiloxKey key = MakePhiloxKey(7, "embedding.dropout");
  std::set<std::array<std::uint32_t, 4>> blocks;
  for (std::uint64_t eight = 0; eight < 4096; ++eight) blocks.insert(DropoutDraws8(key, 0, eight));
  CHECK(blocks.size() == 4096);
}

TEST_CASE("blocks drawn 64 at once are those drawn one by one, with seven rounds too") {
  const PhiloxKey key = MakePhiloxKey(7, "embedding.dropout");
  std::array<std::uint32_t, 4 * kPhiloxBlocks> words{};
  const std::uint64_t first = (std::uint64_t{1} << 32) - 20;
  DrawPhiloxBlocks<kDropoutDrawRounds>(key, first, 3, words.data());
  for (std::uint64_t b = 0; b < static_cast<std::uint64_t>(kPhiloxBlocks); ++b) {
    const auto block = DropoutDraws8(key, 3, first + b);
    for (std::size_t i = 0; i < 4; ++i) CHECK(words.at(4 * b + i) == block.at(i));
  }
}

TEST_CASE("dropout's probability is rounded to 2^-16, and what is kept makes up for it") {
  for (const double p : {0.1, 0.2, 0.5, 0.999, 1e-9, 1 - 1e-9}) {
    CAPTURE(p);
    const Dropping dropping = Dropping::Of(p);
    CHECK(dropping.below >= 1);
    CHECK(dropping.below < kDropoutDraws);
    CHECK(std::abs(dropping.below / 65536.0 - p) <= (p > 1e-4 && p < 0.9999 ? 0.5 / 65536 : 1.0 / 65536));
    CHECK((1 - dropping.below / 65536.0) * dropping.scale == doctest::Approx(1).epsilon(1e-15));
  }
  CHECK(Dropping::Of(0.5).scale == 2);
}

// Each within five standard deviations of what independent draws give.
TEST_CASE("dropout's draws are uniform, and those of neighbours, rows, iterations and streams independent") {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 18;
  constexpr double kCount = kElements;
  constexpr std::uint64_t kRow = 1280;
  const PhiloxKey key = MakePhiloxKey(1234, "layers.3.mlp.dropout");
  const PhiloxKey other = MakePhiloxKey(1234, "layers.4.mlp.dropout");
  const PhiloxKey seed = MakePhiloxKey(1235, "layers.3.mlp.dropout");
  const Dropping dropping = Dropping::Of(0.1);
  const double p = dropping.below / 65536.0;
  using Other = std::function<std::uint32_t(std::uint64_t index)>;
  const std::array<std::pair<const char*, Other>, 9> others = {{
      {"neighbour", [&](std::uint64_t i) { return DropoutDraw(key, 9, i + 1); }},
      {"next word", [&](std::uint64_t i) { return DropoutDraw(key, 9, i + 2); }},
      {"next block", [&](std::uint64_t i) { return DropoutDraw(key, 9, i + 8); }},
      {"next row", [&](std::uint64_t i) { return DropoutDraw(key, 9, i + kRow); }},
      {"next sample", [&](std::uint64_t i) { return DropoutDraw(key, 9, i + kRow * 1024); }},
      {"far away", [&](std::uint64_t i) { return DropoutDraw(key, 9, i + (std::uint64_t{1} << 35)); }},
      {"next iteration", [&](std::uint64_t i) { return DropoutDraw(key, 10, i); }},
      {"other stream", [&](std::uint64_t i) { return DropoutDraw(other, 9, i); }},
      {"other seed", [&](std::uint64_t i) { return DropoutDraw(seed, 9, i); }},
  }};
  std::array<double, 256> high{};
  std::array<double, 256> low{};
  std::array<double, 8> of_place{};
  std::array<double, 9> both{};
  std::array<double, 9> products{};
  double dropped = 0;
  double sum = 0;
  double squares = 0;
  for (std::uint64_t i = 0; i < kElements; ++i) {
    const std::uint32_t draw = DropoutDraw(key, 9, i);
    const double x = draw / 65536.0 - 0.5;
    ++high.at(draw >> 8);
    ++low.at(draw & 0xFFU);
    sum += draw >= dropping.below ? dropping.scale : 0;
    squares += draw >= dropping.below ? dropping.scale * dropping.scale : 0;
    for (std::size_t n = 0; n < others.size(); ++n) {
      const std::uint32_t another = others.at(n).second(i);
      products.at(n) += x * (another / 65536.0 - 0.5);
      if (draw < dropping.below && another < dropping.below) ++both.at(n);
    }
    if (draw >= dropping.below) continue;
    ++dropped;
    ++of_place.at(i % 8);
  }
  CHECK(std::abs(dropped - p * kCount) < 5 * std::sqrt(kCount * p * (1 - p)));
  for (const double count : of_place)
    CHECK(std::abs(count - p * kCount / 8) < 5 * std::sqrt(kCount / 8 * p * (1 - p)));
  // What is kept, scaled: mean 1, variance p / (1 − p).
  const double mean = sum / kCount;
  CHECK(std::abs(mean - 1) < 5 * std::sqrt(p / (1 - p) / kCount));
  CHECK(squares / kCount - mean * mean == doctest::Approx(p / (1 - p)).epsilon(0.02));
  for (std::size_t n = 0; n < others.size(); ++n) {
    CAPTURE(others.at(n).first);
    CHECK(std::abs(both.at(n) - p * p * kCount) < 5 * std::sqrt(kCount * p * p));
    CHECK(std::abs(products.at(n)) < 5 * std::sqrt(kCount) / 12);  // the variance of a product is 1/144
  }
  for (const auto& counts : {high, low}) {
    double chi2 = 0;
    for (const double count : counts)
      chi2 += (count - kCount / 256) * (count - kCount / 256) / (kCount / 256);
    CHECK(std::abs(chi2 - 255) < 5 * std::sqrt(2.0 * 255));
  }
}

}  // namespace engine

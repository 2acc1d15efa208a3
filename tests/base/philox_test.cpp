#include "engine/base/philox.h"

#include <doctest/doctest.h>

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

// From every place in a block of four, over the ends of up to three blocks; not one number more is written.
TEST_CASE("normals by the span are the normals one by one, bit for bit") {
  const PhiloxKey key = MakePhiloxKey(99, "a tensor");
  for (std::uint64_t base : {std::uint64_t{0}, std::uint64_t{1} << 40}) {
    for (std::uint64_t start = 0; start < 4; ++start) {
      for (size_t length = 0; length <= 9; ++length) {
        for (double std : {1.0, 0.02}) {
          CAPTURE(start);
          CAPTURE(length);
          constexpr float kUntouched = 77;
          std::vector<float> out(length + 2, kUntouched);
          PhiloxNormals(key, base + start, std, std::span(out).subspan(1, length));
          CHECK(out.front() == kUntouched);
          CHECK(out.back() == kUntouched);
          for (size_t i = 0; i < length; ++i) {
            const auto expected = static_cast<float>(std * PhiloxNormal(key, base + start + i));
            CHECK(std::bit_cast<std::uint32_t>(out[i + 1]) == std::bit_cast<std::uint32_t>(expected));
          }
        }
      }
    }
  }
}

TEST_CASE("streams of different names and seeds differ") {
  CHECK(PhiloxWord(MakePhiloxKey(1, "a"), 0) != PhiloxWord(MakePhiloxKey(1, "b"), 0));
  CHECK(PhiloxWord(MakePhiloxKey(1, "a"), 0) != PhiloxWord(MakePhiloxKey(2, "a"), 0));
  CHECK(PhiloxWord(MakePhiloxKey(1, "a"), 7, 1) != PhiloxWord(MakePhiloxKey(1, "a"), 7, 2));
}

}  // namespace engine

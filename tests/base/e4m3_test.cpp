#include "engine/base/e4m3.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace engine {
namespace {

TEST_CASE("e4m3: numbers of the format's table") {
  const auto value = [](int bits) { return FloatFromE4M3({static_cast<std::uint8_t>(bits)}); };
  CHECK(value(0x00) == 0.0F);
  CHECK(value(0x01) == 0x1p-9F);      // the smallest
  CHECK(value(0x07) == 7 * 0x1p-9F);  // the largest without a leading 1
  CHECK(value(0x08) == 0x1p-6F);
  CHECK(value(0x38) == 1.0F);
  CHECK(value(0x7E) == kLargestE4M3);
  CHECK(value(0xB9) == -1.125F);
  CHECK(std::isnan(value(0x7F)));
  CHECK(std::isnan(value(0xFF)));
}

TEST_CASE("e4m3: a number of the format is itself; what is beyond 448 becomes that, and NaN stays one") {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = FloatFromE4M3({static_cast<std::uint8_t>(bits)});
    if (!std::isnan(value)) CHECK(E4M3FromFloat(value).bits == bits);
  }
  for (const float sign : {1.0F, -1.0F}) {
    for (const float large : {449.0F, 464.0F, 1e6F, std::numeric_limits<float>::infinity()})
      CHECK(FloatFromE4M3(E4M3FromFloat(sign * large)) == sign * kLargestE4M3);
  }
  CHECK(std::isnan(FloatFromE4M3(E4M3FromFloat(std::numeric_limits<float>::quiet_NaN()))));
}

// Of all numbers the nearest; of two as near the one whose last bit is 0.
std::uint8_t NearestOfAll(float size) {
  std::uint8_t nearest = 0;
  for (std::uint8_t bits = 1; bits < 0x7F; ++bits) {
    const double far = std::fabs(static_cast<double>(FloatFromE4M3({bits})) - size);
    const double best = std::fabs(static_cast<double>(FloatFromE4M3({nearest})) - size);
    if (far < best || (far == best && bits % 2 == 0)) nearest = bits;
  }
  return nearest;
}

TEST_CASE("e4m3: rounds to the nearest, halves to even") {
  for (std::uint8_t bits = 0; bits + 1 < 0x7F; ++bits) {
    const float low = FloatFromE4M3({bits});
    const float high = FloatFromE4M3({static_cast<std::uint8_t>(bits + 1)});
    const float middle = (low + high) / 2;
    for (const float value : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 500.0F)}) {
      CHECK(E4M3FromFloat(value).bits == NearestOfAll(value));
      CHECK(E4M3FromFloat(-value).bits == (NearestOfAll(value) | 0x80));
    }
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-14, 9);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::exp2(exponent(random));
    CHECK(E4M3FromFloat(value).bits == NearestOfAll(value));
  }
}

}  // namespace
}  // namespace engine

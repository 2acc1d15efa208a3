#include "engine/base/e4m3.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace engine {
namespace {

constexpr std::uint8_t kNaN = 0x7F;
constexpr int kFractionBits = 3;
constexpr int kLeastExponent = -6;  // of a number with a leading 1; below it the steps stay as wide

float ValueOf(std::uint8_t bits) {
  const int exponent = bits >> kFractionBits & 15;
  const int fraction = bits & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), kLeastExponent - kFractionBits)
                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (exponent == 15 && fraction == 7) value = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

}  // namespace

E4M3 E4M3FromFloat(float value) {
  const auto sign = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(value) >> 24 & 0x80);
  if (std::isnan(value)) return {static_cast<std::uint8_t>(sign | kNaN)};
  const float size = std::fmin(std::fabs(value), kLargestE4M3);
  const int exponent = size > 0 ? std::max(std::ilogb(size), kLeastExponent) : kLeastExponent;
  // In steps of the numbers with this exponent: from 8 on there is a leading 1, and 16 is the next exponent's 8.
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, kFractionBits - exponent)));
  return {static_cast<std::uint8_t>(sign | (((exponent - kLeastExponent) << kFractionBits) + steps))};
}

const std::array<float, 256>& E4M3Values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) values[static_cast<std::size_t>(i)] = ValueOf(static_cast<std::uint8_t>(i));
    return values;
  }();
  return table;
}

}  // namespace engine

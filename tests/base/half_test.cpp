// Every number of both 16-bit formats, and every midpoint between neighbours, against their definitions.
#include "engine/base/half.h"

#include <doctest/doctest.h>

#include <bit>
#include <initializer_list>
#include <limits>
#include <vector>

namespace engine {
namespace {

struct Format {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  std::uint16_t (*from_float)(float);
  float (*to_float)(std::uint16_t);
  void (*from_floats)(std::span<const float>, std::uint16_t*);

  std::uint32_t infinity() const { return ((1U << exponent_bits) - 1U) << mantissa_bits; }  // positive
};
constexpr Format kFormats[] = {{"bfloat16", 8, 7, BFloat16FromFloat, FloatFromBFloat16, BFloat16FromFloats},
                               {"half", 5, 10, HalfFromFloat, FloatFromHalf, HalfFromFloats}};

// What the bits of a finite number mean, by IEEE 754's definition.
double Defined(const Format& format, std::uint32_t bits) {
  const std::uint32_t mantissa = bits & ((1U << format.mantissa_bits) - 1U);
  const int exponent = static_cast<int>(bits >> format.mantissa_bits & ((1U << format.exponent_bits) - 1U));
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double fraction = std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits);
  const double size =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (bits & 0x8000U) != 0 ? -size : size;
}

// Counted, as one CHECK a number takes long.
void Report(const Format& format, const char* what, int wrong, std::uint32_t first) {
  CHECK_MESSAGE(wrong == 0, format.name << ": " << wrong << " " << what << ", the first for bits " << first);
}

}  // namespace

TEST_CASE("every 16-bit number means what its bits say, and comes back") {
  for (const Format& format : kFormats) {
    int wrong = 0;
    int lost = 0;
    std::uint32_t first = 0;
    for (std::uint32_t bits = 0; bits <= 0xFFFFU; ++bits) {
      const float value = format.to_float(static_cast<std::uint16_t>(bits));
      const std::uint32_t size = bits & 0x7FFFU;
      const bool nan = size > format.infinity();
      bool right = std::isnan(value);
      if (size == format.infinity()) {
        right = value == (bits > 0x7FFFU ? -1.0F : 1.0F) * std::numeric_limits<float>::infinity();
      } else if (!nan) {
        right = value == Defined(format, bits) && std::signbit(value) == (bits > 0x7FFFU);
      }
      const std::uint16_t back = format.from_float(value);
      const bool kept = nan ? (back & 0x7FFFU) > format.infinity() : back == bits;
      if ((!right || !kept) && wrong + lost == 0) first = bits;
      wrong += right ? 0 : 1;
      lost += kept ? 0 : 1;
    }
    Report(format, "numbers are wrong", wrong, first);
    Report(format, "numbers do not come back", lost, first);
  }
}

// Between neighbours a and b: their midpoint goes to the one with an even last bit, what is a float nearer
// goes to the nearer. Beyond the largest number, the neighbour is what the next exponent would hold, and
// gives infinity.
TEST_CASE("rounding is to nearest, ties to even") {
  for (const Format& format : kFormats) {
    int wrong = 0;
    std::uint32_t first = 0;
    for (std::uint32_t sign : {0U, 0x8000U}) {
      for (std::uint32_t low = 0; low < format.infinity(); ++low) {
        const double from = Defined(format, low);
        const double to = Defined(format, low + 1);
        const auto middle = static_cast<float>((from + to) / 2);
        REQUIRE(static_cast<double>(middle) == (from + to) / 2);
        const std::uint32_t even = low % 2 == 0 ? low : low + 1;
        const auto rounds = [&](float value, std::uint32_t expected) {
          return format.from_float(sign != 0 ? -value : value) == (expected | sign);
        };
        if (rounds(middle, even) && rounds(std::nextafter(middle, 0.0F), low) &&
            rounds(std::nextafter(middle, std::numeric_limits<float>::infinity()), low + 1)) {
          continue;
        }
        if (wrong++ == 0) first = low | sign;
      }
    }
    Report(format, "intervals are rounded wrong", wrong, first);
  }
}

TEST_CASE("NaN stays NaN, whatever its payload") {
  for (std::uint32_t payload : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU, 0x7FC00000U}) {
    const auto nan = std::bit_cast<float>(payload);
    for (const Format& format : kFormats) {
      const std::uint16_t bits = format.from_float(nan);
      CHECK((bits & 0x7FFFU) > format.infinity());
      CHECK((bits & 0x8000U) == (payload >> 16 & 0x8000U));
    }
  }
}

// Millions of bit patterns of float, all exponents and both signs, infinities and NaNs among them.
TEST_CASE("many numbers are rounded like one") {
  std::vector<float> from;
  for (std::uint32_t i = 0; i < (1U << 20) + 3; ++i) from.push_back(std::bit_cast<float>(i * 4099U));
  for (const Format& format : kFormats) {
    CAPTURE(format.name);
    std::vector<std::uint16_t> to(from.size() + 2, 0xABCD);
    format.from_floats(from, to.data() + 1);
    CHECK(to.front() == 0xABCD);
    CHECK(to.back() == 0xABCD);
    int wrong = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      const bool right = std::isnan(from[i]) ? (to[i + 1] & 0x7FFFU) > format.infinity()
                                             : to[i + 1] == format.from_float(from[i]);
      wrong += right ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace engine

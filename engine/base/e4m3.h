// 8-bit floating point e4m3 on the host (Micikevicius et al., arXiv:2209.05433): sign, 4 bits of exponent with bias 7, 3 of
// fraction; no infinities, at most 448.
#pragma once

#include <array>
#include <cstdint>

namespace engine {

struct E4M3 {
  std::uint8_t bits = 0;
};
inline constexpr float kLargestE4M3 = 448;

// The nearest number, of two as near the one with an even fraction; beyond ±448 that. A NaN stays one.
E4M3 E4M3FromFloat(float value);

// The values of all 256 patterns of bits, by the pattern.
const std::array<float, 256>& E4M3Values();
inline float FloatFromE4M3(E4M3 number) { return E4M3Values()[number.bits]; }

}  // namespace engine

// 16-bit floating point on the host: bfloat16 and IEEE half, rounded to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace engine {

inline std::uint16_t BFloat16FromFloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // stays a NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
inline float FloatFromBFloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t HalfFromFloat(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}
inline float FloatFromHalf(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

// The same, number by number: to[i] is from[i], rounded.
void BFloat16FromFloats(std::span<const float> from, std::uint16_t* to);
void HalfFromFloats(std::span<const float> from, std::uint16_t* to);
// And back: to[i] is number i of `from`, whose bytes need no alignment.
void FloatsFromBFloat16(const std::byte* from, std::span<float> to);
void FloatsFromHalf(const std::byte* from, std::span<float> to);

}  // namespace engine

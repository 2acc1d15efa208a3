// 8-bit floating point on the host, by its definition (Micikevicius et al., arXiv:2209.05433).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::gpu_test {

// Sign, exponent, mantissa. The codes above `largest` are NaN (e4m3: one) or infinity and NaN (e5m2).
struct Fp8Format {
  int mantissa_bits;
  int least_exponent;  // of a normal number
  std::uint8_t largest;
};
constexpr Fp8Format FormatOf(DType dtype) {
  return dtype == DType::kE4M3 ? Fp8Format{3, -6, 0x7E} : Fp8Format{2, -14, 0x7B};
}

inline double DoubleFromFp8(std::uint8_t code, DType dtype) {
  const Fp8Format format = FormatOf(dtype);
  const int size = code & 0x7F;
  if (size > format.largest) {
    const bool infinite = dtype == DType::kE5M2 && size == 0x7C;
    return infinite ? std::copysign(INFINITY, code > 0x7F ? -1.0 : 1.0) : NAN;
  }
  const int exponent = size >> format.mantissa_bits;
  const int mantissa = size & ((1 << format.mantissa_bits) - 1);
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  const double value =
      std::ldexp(whole, format.least_exponent + std::max(exponent, 1) - 1 - format.mantissa_bits);
  return code > 0x7F ? -value : value;
}

// To the nearest, ties to even; what is larger than the largest number becomes that. NaN: 0x7F.
inline std::uint8_t Fp8FromFloat(float value, DType dtype) {
  if (std::isnan(value)) return 0x7F;
  const Fp8Format format = FormatOf(dtype);
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const double size = std::fabs(static_cast<double>(value));
  if (size >= DoubleFromFp8(format.largest, dtype)) return sign | format.largest;
  const int exponent = size > 0 ? std::max(std::ilogb(size), format.least_exponent) : format.least_exponent;
  const double units = std::nearbyint(std::ldexp(size, format.mantissa_bits - exponent));
  // The mantissa's carry goes into the exponent; a subnormal number has exponent 0 and no leading one.
  const int code = ((exponent - format.least_exponent) << format.mantissa_bits) + static_cast<int>(units);
  return sign | static_cast<std::uint8_t>(std::min<int>(code, format.largest));
}

}  // namespace engine::gpu_test

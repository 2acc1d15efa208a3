// Element types of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace engine {

// kE4M3 and kE5M2: 8-bit floating point of Micikevicius et al., arXiv:2209.05433 (e4m3: no infinities, at
// most 448).
enum class DType : std::uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kU16, kU8, kE4M3, kE5M2 };

constexpr std::int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
    case DType::kE4M3:
    case DType::kE5M2:
      return 1;
  }
  return 0;
}

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kU16:
      return "u16";
    case DType::kU8:
      return "u8";
    case DType::kE4M3:
      return "e4m3";
    case DType::kE5M2:
      return "e5m2";
  }
  return "?";
}

constexpr std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32,
                      DType::kU16, DType::kU8, DType::kE4M3, DType::kE5M2}) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace engine

// Numbers with units, as people read and write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace engine {

std::string FormatBytes(std::int64_t bytes);     // "1.50 GiB", "12 B"
std::string FormatCount(double count);           // "774.0M", "1.01T"
std::string WithThousands(std::int64_t number);  // "774,030,080"

// "141GB", "141 GB", "64 MiB", "1024" → bytes. Decimal and binary prefixes; nullopt where it is no size or
// overflows 63 bits.
std::optional<std::int64_t> ParseBytes(std::string_view text);

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t RoundUp(std::int64_t a, std::int64_t multiple) {
  return CeilDiv(a, multiple) * multiple;
}

}  // namespace engine

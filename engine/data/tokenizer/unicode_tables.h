// The tables that tools/unicode-tables writes, for unicode.cpp, which says what they mean.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine::tokenizer {

extern const std::uint16_t kClasses[];        // general category | bits << 8
extern const std::uint32_t kClassRuns[];      // length << 8 | index into kClasses
extern const std::uint32_t kCombiningRuns[];  // length << 8 | canonical combining class
extern const std::uint32_t kDecompositions[];
extern const std::uint32_t kLowerCase[];
extern const std::uint32_t kBreakRuns[];   // length << 8 | Break | is a picture << 4 | conjunct << 5
extern const std::uint32_t kScriptRuns[];  // length << 8 | script's number
extern const std::size_t kClassesSize, kClassRunsSize, kCombiningRunsSize, kDecompositionsSize,
    kLowerCaseSize, kBreakRunsSize, kScriptRunsSize;

}  // namespace engine::tokenizer

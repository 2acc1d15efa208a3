#include "engine/data/tokenizer/unicode.h"

#include <absl/container/flat_hash_map.h>

#include <array>
#include <memory>

#include "engine/data/tokenizer/unicode_tables.h"

namespace engine::tokenizer {
namespace {

constexpr std::size_t kCodePoints = 0x110000;

// A byte for each code point, from runs.
std::unique_ptr<std::uint8_t[]> Expand(const std::uint32_t* runs, std::size_t count) {
  auto bytes = std::make_unique<std::uint8_t[]>(kCodePoints);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::size_t end = at + (runs[i] >> 8); at < end; ++at) {
      bytes[at] = static_cast<std::uint8_t>(runs[i]);
    }
  }
  return bytes;
}

struct ClassTable {
  std::unique_ptr<std::uint8_t[]> of = Expand(kClassRuns, kClassRunsSize);
  std::array<Properties, 256> properties = {};
  std::array<Properties, 128> ascii = {};

  ClassTable() {
    for (std::size_t i = 0; i < kClassesSize; ++i) {
      properties[i] = Of(static_cast<Category>(kClasses[i] & 0xFF)) | Properties{kClasses[i]} >> 8 << 32;
    }
    for (std::size_t i = 0; i < ascii.size(); ++i) ascii[i] = properties[of[i]];
  }
};

const ClassTable& Classes() {
  static const ClassTable& table = *new ClassTable;
  return table;
}

struct Mapping {
  std::uint32_t first = 0;  // index into the table
  std::uint16_t length = 0;
  bool is_compatibility = false;
};

struct NormalFormTable {
  std::unique_ptr<std::uint8_t[]> combining = Expand(kCombiningRuns, kCombiningRunsSize);
  absl::flat_hash_map<char32_t, Mapping> decompositions;
  absl::flat_hash_map<std::uint64_t, char32_t> composites;

  NormalFormTable() {
    for (std::size_t i = 0; i < kDecompositionsSize;) {
      const char32_t from = kDecompositions[i] >> 1;
      const std::uint32_t length = kDecompositions[i + 1] >> 1;
      const auto at = static_cast<std::uint32_t>(i + 2);
      decompositions[from] = {at, static_cast<std::uint16_t>(length), (kDecompositions[i] & 1) != 0};
      if ((kDecompositions[i + 1] & 1) != 0) {
        composites[std::uint64_t{kDecompositions[at]} << 32 | kDecompositions[at + 1]] = from;
      }
      i += 2 + length;
    }
  }
};

const NormalFormTable& NormalForms() {
  static const NormalFormTable& table = *new NormalFormTable;
  return table;
}

}  // namespace

const Properties* const kAsciiProperties = Classes().ascii.data();

Properties PropertiesOf(char32_t code_point) {
  const ClassTable& table = Classes();
  return code_point < kCodePoints ? table.properties[table.of[code_point]] : Of(Category::kCn);
}

std::uint8_t CombiningClass(char32_t code_point) {
  return code_point < kCodePoints ? NormalForms().combining[code_point] : 0;
}

std::span<const std::uint32_t> LowerCase(char32_t code_point) {
  static const auto& map = *[] {
    auto* made = new absl::flat_hash_map<char32_t, Mapping>;
    for (std::size_t i = 0; i < kLowerCaseSize; i += 2 + kLowerCase[i + 1]) {
      (*made)[kLowerCase[i]] = {static_cast<std::uint32_t>(i + 2),
                                static_cast<std::uint16_t>(kLowerCase[i + 1])};
    }
    return made;
  }();
  const auto found = map.find(code_point);
  if (found == map.end()) return {};
  return {kLowerCase + found->second.first, found->second.length};
}

Decomposition DecompositionOf(char32_t code_point) {
  const auto& map = NormalForms().decompositions;
  const auto found = map.find(code_point);
  if (found == map.end()) return {};
  return {{kDecompositions + found->second.first, found->second.length}, found->second.is_compatibility};
}

char32_t Composite(char32_t first, char32_t second) {
  const auto& map = NormalForms().composites;
  const auto found = map.find(std::uint64_t{first} << 32 | second);
  return found == map.end() ? 0 : found->second;
}

BreakProperties BreakOf(char32_t code_point) {
  static const std::uint8_t* const table = Expand(kBreakRuns, kBreakRunsSize).release();
  const std::uint8_t value = code_point < kCodePoints ? table[code_point] : 0;
  return {static_cast<Break>(value & 15), (value & 16) != 0, (value & 32) != 0, (value & 64) != 0};
}

std::uint8_t ScriptOf(char32_t code_point) {
  static const std::uint8_t* const table = Expand(kScriptRuns, kScriptRunsSize).release();
  return code_point < kCodePoints ? table[code_point] : 0;
}

}  // namespace engine::tokenizer

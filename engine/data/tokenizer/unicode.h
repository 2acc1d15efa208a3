// Properties of code points, from tables of this repository, so that token ids are the same on every machine. Each
// property is of the Unicode version from which the reference tokenizers (Hugging Face's library, 0.23.2) take it;
// tools/unicode-tables says which and why. Code points above U+10FFFF are unassigned.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace engine::tokenizer {

// General_Category of Unicode 16.0, in the order of tools/unicode-tables.
enum class Category : std::uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCo,
  kCs,
};

// A set of properties of a code point: 1 << a Category, or one of the bits below.
using Properties = std::uint64_t;
constexpr Properties Of(Category category) { return Properties{1} << static_cast<int>(category); }

inline constexpr Properties kLetter =
    Of(Category::kLu) | Of(Category::kLl) | Of(Category::kLt) | Of(Category::kLm) | Of(Category::kLo);
inline constexpr Properties kMark = Of(Category::kMn) | Of(Category::kMc) | Of(Category::kMe);
inline constexpr Properties kNumber = Of(Category::kNd) | Of(Category::kNl) | Of(Category::kNo);
inline constexpr Properties kPunctuation = Of(Category::kPc) | Of(Category::kPd) | Of(Category::kPs) |
                                           Of(Category::kPe) | Of(Category::kPi) | Of(Category::kPf) |
                                           Of(Category::kPo);
inline constexpr Properties kSymbol =
    Of(Category::kSm) | Of(Category::kSc) | Of(Category::kSk) | Of(Category::kSo);

inline constexpr Properties kWhiteSpace = Properties{1} << 32;  // White_Space, the same in all versions here
inline constexpr Properties kWord = Properties{1} << 33;        // \w of Rust's regex crate: 16.0
inline constexpr Properties kNumeric = Properties{1} << 34;     // N of 17.0
inline constexpr Properties kOldPunctuation = Properties{1} << 35;  // P of 8.0, and ASCII's other signs
inline constexpr Properties kOldNonspacing = Properties{1} << 36;   // Mn of 8.0
inline constexpr Properties kOldControl = Properties{1} << 37;      // Cc, Cf, Co of 8.0
inline constexpr Properties kCombining = Properties{1} << 38;       // M of 9.0
inline constexpr Properties kActsInNfc = Properties{1} << 39;  // NFC of a text without such ones is itself

Properties PropertiesOf(char32_t code_point);
inline bool Is(char32_t code_point, Properties any_of) { return (PropertiesOf(code_point) & any_of) != 0; }

// Properties of code points below U+0080 by themselves, for loops over bytes.
extern const Properties* const kAsciiProperties;

std::uint8_t CombiningClass(char32_t code_point);  // of 9.0

// The full lower case of one code point, without regard to its neighbours (17.0); empty: it is its own.
std::span<const std::uint32_t> LowerCase(char32_t code_point);

// One step of decomposition (9.0); empty: none.
struct Decomposition {
  std::span<const std::uint32_t> to;
  bool is_compatibility = false;
};
Decomposition DecompositionOf(char32_t code_point);
// The primary composite of two code points (9.0), Hangul not among them; 0: none.
char32_t Composite(char32_t first, char32_t second);

// What a code point is to the borders between grapheme clusters (UAX 29 of 16.0).
enum class Break : std::uint8_t {
  kOther,
  kCr,
  kLf,
  kControl,
  kExtend,
  kZwj,
  kRegional,
  kPrepend,
  kSpacingMark,
  kL,
  kV,
  kT,
  kLv,
  kLvt,
};
struct BreakProperties {
  Break kind = Break::kOther;
  bool is_picture = false;    // Extended_Pictographic
  bool is_linker = false;     // InCB=Linker
  bool is_consonant = false;  // InCB=Consonant
};
BreakProperties BreakOf(char32_t code_point);

// A number for the script of a code point (9.0), as SentencePiece takes them: Hiragana and Katakana are Han. 0: of any
// script, which are the space and what is unassigned.
std::uint8_t ScriptOf(char32_t code_point);

}  // namespace engine::tokenizer

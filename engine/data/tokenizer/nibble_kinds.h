// The kinds of ASCII bytes as two tables of 16: a byte is of the kinds that both its halves allow, kLowNibbles[byte & 15] &
// kHighNibbles[byte >> 4]. A processor looks up 16 and more bytes in such a table at once (Langdale and Lemire 2019).
// Bytes from 0x80 on are of no kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace engine::tokenizer {

struct NibbleTable {
  alignas(16) std::uint8_t bits[16] = {};
};

inline constexpr int kLetterKinds = 1 | 2;  // letters are two products of halves
inline constexpr int kDigitKind = 4;
inline constexpr int kTabKind = 8;  // white space but a space and line ends
inline constexpr int kNewlineKind = 16;
inline constexpr int kSpaceKind = 32;
inline constexpr int kQuoteKind = 64;
inline constexpr int kSlashKind = 128;

constexpr int LowNibbleKinds(int low) {
  int kinds = 0;
  if (low >= 1) kinds |= 1;   // A to O
  if (low <= 10) kinds |= 2;  // P to Z
  if (low <= 9) kinds |= kDigitKind;
  if (low == 9 || low == 11 || low == 12) kinds |= kTabKind;
  if (low == 10 || low == 13) kinds |= kNewlineKind;
  if (low == 0) kinds |= kSpaceKind;
  if (low == 7) kinds |= kQuoteKind;
  if (low == 15) kinds |= kSlashKind;
  return kinds;
}

constexpr int HighNibbleKinds(int high) {
  switch (high) {
    case 0:
      return kTabKind | kNewlineKind;
    case 2:
      return kSpaceKind | kQuoteKind | kSlashKind;
    case 3:
      return kDigitKind;
    case 4:
    case 6:
      return 1;
    case 5:
    case 7:
      return 2;
    default:
      return 0;
  }
}

template <int (*kinds_of)(int)>
constexpr NibbleTable MakeNibbleTable() {
  NibbleTable table;
  for (int i = 0; i < 16; ++i) table.bits[i] = static_cast<std::uint8_t>(kinds_of(i));
  return table;
}

inline constexpr NibbleTable kLowNibbles = MakeNibbleTable<LowNibbleKinds>();
inline constexpr NibbleTable kHighNibbles = MakeNibbleTable<HighNibbleKinds>();

}  // namespace engine::tokenizer

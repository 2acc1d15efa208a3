// The words of each scanner from masks of 64 bytes. This file is compiled once for each extension of the processor, by the
// files that include it, and they give it
//   Kinds KindsOf(const char* at, std::size_t count);           of `count` bytes, 64 at most: nothing behind is read
//   std::uint32_t* PutBits(Mask bits, std::uint32_t base, std::uint32_t* out);   base + the place of each bit; writes 64
// All is within an unnamed namespace, and nothing of the standard library is called: what is compiled here for one
// processor must not stand in for a function of the same name elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/data/tokenizer/block_scanner.h"
#include "engine/data/tokenizer/contraction.h"

namespace engine::tokenizer {
namespace {

// Bit i is of byte i.
using Mask = std::uint64_t;

struct Kinds {
  Mask letter;
  Mask capital;
  Mask digit;
  Mask blank;    // white space but line ends
  Mask space;    // of them U+0020
  Mask newline;  // LF and CR
  Mask quote;
  Mask slash;
  Mask control;  // no white space
  Mask foreign;  // not ASCII
};

Kinds KindsOf(const char* at, std::size_t count);
std::uint32_t* PutBits(Mask bits, std::uint32_t base, std::uint32_t* out);

inline Mask Below(std::size_t count) { return count >= 64 ? ~Mask{0} : (Mask{1} << count) - 1; }

// How the patterns differ.
struct Rules {
  bool gpt2 = false;            // a space may stand before digits, any white space is like any other
  std::size_t digits = 0;       // at most so many in a word; 0: any number
  bool folds = false;           // contractions in either case
  bool contractions = true;     // 's 't 're 've 'm 'll 'd
  bool after_letters = false;   // they belong to the word before them
  bool cases = false;           // a capital behind a small letter begins a word
  bool slashes = false;         // slashes among the line ends behind signs
  bool digits_end_all = false;  // what is between digits is cut by itself
};

constexpr Rules RulesOf(Scanner scanner) {
  switch (scanner) {
    case Scanner::kGpt2:
      return {.gpt2 = true};
    case Scanner::kLlama3:
      return {.digits = 3, .folds = true};
    case Scanner::kQwen:
      return {.digits = 1, .folds = true};
    case Scanner::kO200k:
      return {.digits = 3, .folds = true, .after_letters = true, .cases = true, .slashes = true};
    case Scanner::kTekken:
      return {.digits = 1, .contractions = false, .cases = true, .slashes = true};
    case Scanner::kDeepSeek:
      return {.digits = 3, .contractions = false, .digits_end_all = true};
  }
  return {};
}

// Where words begin in the `count` bytes at `at` behind the first of them, where one begins. *open: something follows that
// is not known, or becomes true, where not all of these can be told.
template <Scanner scanner>
inline Mask Begins(const char* at, const Kinds& k, std::size_t count, bool* open) {
  constexpr Rules kRules = RulesOf(scanner);
  const Mask white = k.blank | k.newline;
  const Mask sign = Below(count) & ~(k.letter | k.digit | white);
  const Mask behind_space = k.space << 1;
  const Mask behind_letter = k.letter << 1;
  const Mask first_sign = sign & ~(sign << 1) & ~behind_space;
  const bool is_open = *open;
  Mask certain = ~Mask{0};
  Mask begins = 0;
  const auto only = [&](Mask some) {
    certain &= some;
    *open = true;
  };
  if (kRules.gpt2) {
    begins = ((k.letter & ~behind_letter) | (k.digit & ~(k.digit << 1))) & ~behind_space;
    begins |= first_sign;
    // White space begins a word behind something else, and so does the last before something else.
    begins |= white & (~(white << 1) | (Below(count) & ~white) >> 1);
  } else {
    // Before letters stands a blank, or a sign that is by itself.
    begins = k.letter & ~behind_letter & ~(k.blank << 1) & ~(first_sign << 1);
    if (kRules.cases) begins |= k.capital & (k.letter & ~k.capital) << 1;
    begins |= first_sign;
    if (kRules.digits == 1) {
      begins |= k.digit;
    } else {
      Mask group = k.digit & ~(k.digit << 1);
      const Mask behind_two = k.digit & k.digit << 1 & k.digit << 2;
      while (group != 0) {
        begins |= group;
        group = group << 3 & behind_two;
      }
    }
    // Line ends join signs before them, and white space.
    begins |= k.newline & (k.letter | k.digit) << 1;
    // Blanks behind a line end are another word, unless a line end follows them, which is seldom.
    const Mask behind_newline = k.blank & k.newline << 1;
    const Mask newline_behind = (behind_newline + k.blank) & ~k.blank & k.newline;
    if (newline_behind != 0) only((behind_newline & (~behind_newline + 1)) - 1);
    const Mask something = k.letter | sign | (kRules.digits_end_all ? 0 : k.digit);
    begins |= k.blank & (~(white << 1) | behind_newline | something >> 1);
    if (kRules.slashes) {
      const Mask slash = k.slash & k.newline << 1;
      if (slash != 0) only((slash & (~slash + 1)) - 1);
    }
  }
  if (kRules.contractions) {
    Mask quotes = k.quote & (kRules.after_letters ? behind_letter : first_sign & k.letter >> 1);
    while (quotes != 0) {
      const auto place = static_cast<std::size_t>(__builtin_ctzll(quotes));
      const Mask here = quotes & (~quotes + 1);
      quotes ^= here;
      if (is_open && place + 2 >= count) {  // what follows is not all there
        only(kRules.after_letters ? here - 1 : (here << 1) - 1);
        break;
      }
      const std::size_t bytes = ContractionBytes(at + place, count - place, kRules.folds);
      if (bytes == 0) continue;
      const Mask behind = here << bytes;
      if (kRules.gpt2) begins &= ~(behind - here) | here;
      if (kRules.after_letters) {
        begins &= ~(behind - here);
        quotes &= ~behind;  // there a word begins
      }
      begins |= behind;
    }
  }
  if (is_open) {  // the last white space depends on what follows
    const Mask not_white = ~(white << (64 - count));
    const auto last = not_white == 0 ? std::size_t{64} : static_cast<std::size_t>(__builtin_clzll(not_white));
    certain &= last >= count ? 0 : Below(count - last);
  }
  return begins & certain & Below(count) & ~Mask{1};
}

template <Scanner scanner>
std::uint32_t* ScanBlocks(const char* text, const char** begin, const char* end, std::uint32_t* out,
                          const std::uint32_t* full) {
  const char* at = *begin;
  while (at != end && out < full) {
    const auto left = static_cast<std::size_t>(end - at);
    std::size_t count = left < 64 ? left : 64;
    const Kinds kinds = KindsOf(at, count);
    bool open = left > 64;
    const Mask unknown = kinds.foreign | (RulesOf(scanner).digits_end_all ? kinds.control : 0);
    if (unknown != 0) {
      count = static_cast<std::size_t>(__builtin_ctzll(unknown));
      open = true;
      if (count == 0) break;
    }
    Kinds known = kinds;
    if (unknown != 0) {
      const Mask here = Below(count);
      known = {kinds.letter & here,  kinds.capital & here,
               kinds.digit & here,   kinds.blank & here,
               kinds.space & here,   kinds.newline & here,
               kinds.quote & here,   kinds.slash & here,
               kinds.control & here, 0};
    }
    const Mask begins = Begins<scanner>(at, known, count, &open);
    const auto base = static_cast<std::uint32_t>(at - text);
    if (begins != 0) out = PutBits(begins, base, out);
    if (!open) {
      *out++ = static_cast<std::uint32_t>(end - text);
      at = end;
      break;
    }
    if (begins == 0) break;
    at += 63 - __builtin_clzll(begins);
  }
  *begin = at;
  return out;
}

BlockScanner ScannerHere(Scanner scanner) {
  switch (scanner) {
    case Scanner::kGpt2:
      return ScanBlocks<Scanner::kGpt2>;
    case Scanner::kLlama3:
      return ScanBlocks<Scanner::kLlama3>;
    case Scanner::kQwen:
      return ScanBlocks<Scanner::kQwen>;
    case Scanner::kO200k:
      return ScanBlocks<Scanner::kO200k>;
    case Scanner::kTekken:
      return ScanBlocks<Scanner::kTekken>;
    case Scanner::kDeepSeek:
      return ScanBlocks<Scanner::kDeepSeek>;
  }
  return nullptr;
}

}  // namespace
}  // namespace engine::tokenizer

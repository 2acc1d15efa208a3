#include "engine/data/tokenizer/scanners.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>

#include "engine/data/tokenizer/block_scanner.h"
#include "engine/data/tokenizer/contraction.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

constexpr std::string_view kGpt2Patterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    // tiktoken's newer text, which is equal.
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"};
constexpr std::string_view kLlama3Patterns[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwenPatterns[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kO200kPatterns[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kTekkenPatterns[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kDeepSeekPatterns[] = {
    R"(\p{N}{1,3})", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"};

// What the patterns ask of a character, as bits.
using Kind = std::uint8_t;
constexpr Kind kIsLetter = 1, kIsNumber = 2, kIsSpace = 4, kIsMark = 8, kIsSign = 16;  // sign: \p{P} or \p{S}
constexpr Kind kIsUpper = 32;  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
constexpr Kind kIsLower = 64;  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
constexpr Kind kIsNewline = 128;

struct KindTable {
  std::array<Kind, 256> bytes = {};  // of ASCII; other bytes are of no kind
  std::array<Kind, 0x110000> all = {};

  KindTable() {
    constexpr Properties kUncased = Of(Category::kLm) | Of(Category::kLo) | kMark;
    constexpr std::pair<Properties, Kind> kKinds[] = {
        {kLetter, kIsLetter},
        {kNumber, kIsNumber},
        {kWhiteSpace, kIsSpace},
        {kMark, kIsMark},
        {kPunctuation | kSymbol, kIsSign},
        {Of(Category::kLu) | Of(Category::kLt) | kUncased, kIsUpper},
        {Of(Category::kLl) | kUncased, kIsLower}};
    for (char32_t c = 0; c < all.size(); ++c) {
      const Properties properties = PropertiesOf(c);
      for (const auto& [any_of, kind] : kKinds) {
        if ((properties & any_of) != 0) all[c] |= kind;
      }
    }
    all['\r'] |= kIsNewline;
    all['\n'] |= kIsNewline;
    for (std::size_t c = 0; c < 0x80; ++c) bytes[c] = all[c];
  }
};

const KindTable& Kinds() {
  static const KindTable& table = *new KindTable;
  return table;
}

// A position in UTF-8 that is known to be well-formed.
class Cursor {
 public:
  Cursor(const char* begin, const char* end, const KindTable& kinds) : at_(begin), end_(end), kinds_(&kinds) {
    Look();
  }

  const char* at() const { return at_; }
  bool at_end() const { return at_ == end_; }
  Kind kind() const { return kind_; }  // of the character here; 0 at the end
  bool Is(Kind any_of) const { return (kind_ & any_of) != 0; }
  char32_t c() const { return c_; }

  void Next() {
    at_ += length_;
    Look();
  }
  void SkipAll(Kind any_of) {
    while (Is(any_of)) Next();
  }

 private:
  void Look() {
    if (at_ == end_) {
      c_ = 0;
      kind_ = 0;
      length_ = 0;
      return;
    }
    const auto byte = [this](int i) { return static_cast<unsigned char>(at_[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) {
      c_ = lead;
      length_ = 1;
      kind_ = kinds_->bytes[lead];
      return;
    }
    if (lead < 0xE0) {
      c_ = (lead & 0x1FU) << 6 | (byte(1) & 0x3FU);
      length_ = 2;
    } else if (lead < 0xF0) {
      c_ = (lead & 0xFU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU);
      length_ = 3;
    } else {
      c_ = (lead & 7U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU);
      length_ = 4;
    }
    kind_ = kinds_->all[c_];
  }

  const char* at_;
  const char* end_;
  const KindTable* kinds_;
  char32_t c_ = 0;
  std::uint32_t length_ = 0;
  Kind kind_ = 0;
};

// Bytes of a contraction at `at`, in any case where `folds`, where U+017F is an s as well; 0: there is none.
std::size_t Contraction(const char* at, const char* end, bool folds) {
  if (at == end || *at != '\'') return 0;
  const auto count = static_cast<std::size_t>(end - at);
  if (const std::size_t bytes = ContractionBytes(at, count, folds); bytes > 0) return bytes;
  return folds && count >= 3 && at[1] == '\xC5' && at[2] == '\xBF' ? 3 : 0;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ where white space begins; without the first of the three where no `newlines`.
template <typename AnyCursor>
const char* WhiteSpace(AnyCursor cursor, bool newlines) {
  const char* behind_newline = nullptr;
  const char* last = cursor.at();
  std::size_t count = 0;
  for (; cursor.Is(kIsSpace); cursor.Next(), ++count) {
    last = cursor.at();
    if (cursor.Is(kIsNewline)) behind_newline = last + 1;
  }
  if (newlines && behind_newline != nullptr) return behind_newline;
  return cursor.at_end() || count == 1 ? cursor.at() : last;
}

// Each of the functions below returns the end of the word that begins at `cursor`, which is not at its end.
const char* Gpt2Word(Cursor cursor, const char* end) {
  if (const std::size_t bytes = Contraction(cursor.at(), end, /*folds=*/false); bytes > 0)
    return cursor.at() + bytes;
  Cursor word = cursor;
  if (word.c() == ' ') word.Next();
  if (word.at_end() || word.Is(kIsSpace)) return WhiteSpace(cursor, /*newlines=*/false);
  if (word.Is(kIsLetter)) {
    word.SkipAll(kIsLetter);
  } else if (word.Is(kIsNumber)) {
    word.SkipAll(kIsNumber);
  } else {
    while (!word.at_end() && !word.Is(kIsLetter | kIsNumber | kIsSpace)) word.Next();
  }
  return word.at();
}

const char* Digits(Cursor cursor, int most) {
  for (int i = 0; i < most && cursor.Is(kIsNumber); ++i) cursor.Next();
  return cursor.at();
}

//  ?[^\s\p{L}\p{N}]+[\r\n]*, with / among the last where `slashes`; where it does not match: white space.
const char* SignsOrSpace(Cursor cursor, bool slashes) {
  Cursor word = cursor;
  if (word.c() == ' ') word.Next();
  if (word.at_end() || word.Is(kIsLetter | kIsNumber | kIsSpace))
    return WhiteSpace(cursor, /*newlines=*/true);
  while (!word.at_end() && !word.Is(kIsLetter | kIsNumber | kIsSpace)) word.Next();
  while (word.Is(kIsNewline) || (slashes && word.c() == '/')) word.Next();
  return word.at();
}

const char* Llama3Word(Cursor cursor, const char* end, int digits) {
  if (cursor.Is(kIsNumber)) return Digits(cursor, digits);
  if (const std::size_t bytes = Contraction(cursor.at(), end, /*folds=*/true); bytes > 0)
    return cursor.at() + bytes;
  Cursor word = cursor;
  if (!word.Is(kIsLetter | kIsNewline)) word.Next();
  if (word.Is(kIsLetter)) {
    word.SkipAll(kIsLetter);
    return word.at();
  }
  return SignsOrSpace(cursor, /*slashes=*/false);
}

// [upper]*[lower]+ from here: its end, or null.
const char* UpperThenLower(Cursor cursor) {
  const char* behind_last_lower = nullptr;  // of what is both, where the first part gives back
  while (cursor.Is(kIsUpper)) {
    const bool is_both = cursor.Is(kIsLower);
    cursor.Next();
    if (is_both) behind_last_lower = cursor.at();
  }
  if (!cursor.Is(kIsLower)) return behind_last_lower;
  cursor.SkipAll(kIsLower);
  return cursor.at();
}

const char* O200kWord(Cursor cursor, const char* end, bool contractions, int digits) {
  if (cursor.Is(kIsNumber)) return Digits(cursor, digits);
  Cursor behind = cursor;  // the character that may stand before the letters
  if (!behind.Is(kIsLetter | kIsNewline)) behind.Next();
  const char* word = UpperThenLower(behind);
  if (word == nullptr && behind.at() != cursor.at()) word = UpperThenLower(cursor);
  if (word == nullptr && behind.Is(kIsUpper)) {
    behind.SkipAll(kIsUpper);
    word = behind.at();
  }
  if (word == nullptr) return SignsOrSpace(cursor, /*slashes=*/true);
  return contractions ? word + Contraction(word, end, /*folds=*/true) : word;
}

// Most words of most texts are ASCII letters, perhaps with a character before them. Each of the functions below returns
// the end of such a word at `at`, or null where it is none, or what follows could belong to it: then the functions above
// look at it.
inline bool IsAsciiKind(const KindTable& kinds, const char* at, const char* end, Kind any_of) {
  return at != end && (kinds.bytes[static_cast<unsigned char>(*at)] & any_of) != 0;
}

inline const char* SkipAscii(const KindTable& kinds, const char* at, const char* end, Kind any_of) {
  while (IsAsciiKind(kinds, at, end, any_of)) ++at;
  return at;
}

inline const char* EndBeforeAscii(const char* at, const char* end) {
  return at == end || static_cast<unsigned char>(*at) < 0x80 ? at : nullptr;
}

// Letters at the beginning of 16 bytes. Words end at places that no processor can foresee, so a loop over their bytes costs
// more than these few instructions.
#if defined(__SSE2__)
inline int CountAsciiLetters(const char* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i place = _mm_sub_epi8(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), _mm_set1_epi8('a'));
  const __m128i is_letter = _mm_cmpeq_epi8(_mm_min_epu8(place, _mm_set1_epi8(25)), place);
  return std::countr_one(static_cast<std::uint32_t>(_mm_movemask_epi8(is_letter)));
}
#else
inline int CountAsciiLetters(const char* at) {
  int count = 0;
  while (count < 16 && static_cast<unsigned char>((at[count] | 0x20) - 'a') < 26) ++count;
  return count;
}
#endif

inline const char* EasyLetters(const KindTable& kinds, const char* at, const char* end) {
  if (end - at > 16) {
    const int letters = CountAsciiLetters(at);
    if (letters == 0) return nullptr;
    if (letters < 16) return static_cast<unsigned char>(at[letters]) < 0x80 ? at + letters : nullptr;
  }
  if (!IsAsciiKind(kinds, at, end, kIsLetter)) return nullptr;
  return EndBeforeAscii(SkipAscii(kinds, at + 1, end, kIsLetter), end);
}

const char* EasyGpt2Word(const KindTable& kinds, const char* at, const char* end) {
  return EasyLetters(kinds, *at == ' ' ? at + 1 : at, end);
}

// What may stand before letters, of ASCII: anything but letters, numbers and line ends, and here not ', which may begin a
// contraction.
bool IsEasyPrefix(const KindTable& kinds, const char* at) {
  const auto c = static_cast<unsigned char>(*at);
  return c < 0x80 && c != '\'' && (kinds.bytes[c] & (kIsLetter | kIsNumber | kIsNewline)) == 0;
}

const char* EasyLlama3Word(const KindTable& kinds, const char* at, const char* end) {
  return EasyLetters(kinds, IsEasyPrefix(kinds, at) ? at + 1 : at, end);
}

const char* EasyO200kWord(const KindTable& kinds, const char* at, const char* end) {
  const char* const upper = SkipAscii(kinds, IsEasyPrefix(kinds, at) ? at + 1 : at, end, kIsUpper);
  const char* const lower = SkipAscii(kinds, upper, end, kIsLower);
  return lower == upper || (lower != end && *lower == '\'') ? nullptr : EndBeforeAscii(lower, end);
}

// The words of `text`: by blocks where there is a scanner of them and as far as it sees; else those that are `easy`;
// else by `word`.
template <auto easy, typename Word>
void ScanWords(std::string_view text, BlockScanner blocks, std::vector<std::uint32_t>* ends, Word word) {
  const KindTable& kinds = Kinds();
  const char* const end = text.data() + text.size();
  const auto is_foreign = [end](const char* at) {
    return at != end && (static_cast<unsigned char>(*at) >= 0x80 ||
                         (at + 1 != end && static_cast<unsigned char>(at[1]) >= 0x80));
  };
  constexpr std::size_t kTogether = 1024;
  constexpr std::size_t kBehind = 64;  // where a scanner of blocks may write
  for (const char* at = text.data(); at != end;) {
    const std::size_t before = ends->size();
    ends->resize(before + std::min<std::size_t>(kTogether, static_cast<std::size_t>(end - at)) + kBehind);
    std::uint32_t* out = ends->data() + before;
    const std::uint32_t* const full = ends->data() + ends->size() - kBehind;
    while (at != end && out < full) {
      if (blocks != nullptr) {
        if (!is_foreign(at)) out = blocks(text.data(), &at, end, out, full);
        if (at == end || out >= full) break;
        at = word(Cursor(at, end, kinds), end);
      } else {
        const char* const easy_end = easy(kinds, at, end);
        at = easy_end != nullptr ? easy_end : word(Cursor(at, end, kinds), end);
      }
      *out++ = static_cast<std::uint32_t>(at - text.data());
    }
    ends->resize(static_cast<std::size_t>(out - ends->data()));
  }
}

bool IsDeepSeekCjk(char32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Of DeepSeek's patterns the first two cut off digits, and runs of Chinese and Japanese characters; the third cuts what is
// left, piece by piece. This is a cursor for which a piece is all.
class PieceCursor {
 public:
  explicit PieceCursor(Cursor cursor) : cursor_(cursor), is_cjk_(IsDeepSeekCjk(cursor.c())) {}
  const char* at() const { return cursor_.at(); }
  bool at_end() const {
    return cursor_.at_end() || cursor_.Is(kIsNumber) || IsDeepSeekCjk(cursor_.c()) != is_cjk_;
  }
  bool Is(Kind any_of) const { return cursor_.Is(any_of) && !at_end(); }
  char32_t c() const { return at_end() ? 0 : cursor_.c(); }
  void Next() { cursor_.Next(); }
  void SkipAll(Kind any_of) {
    while (Is(any_of)) Next();
  }

 private:
  Cursor cursor_;
  bool is_cjk_;
};

// The end of what the third pattern matches here, or null.
const char* DeepSeekMatch(const PieceCursor& cursor) {
  PieceCursor word = cursor;
  word.Next();
  if (cursor.c() < 0x80 && cursor.Is(kIsSign) && IsAsciiLetter(word.c())) {
    while (IsAsciiLetter(word.c())) word.Next();
    return word.at();
  }
  if (cursor.Is(kIsLetter | kIsMark) || (!cursor.Is(kIsNewline | kIsSign) && word.Is(kIsLetter | kIsMark))) {
    word.SkipAll(kIsLetter | kIsMark);
    return word.at();
  }
  PieceCursor signs = cursor;
  if (signs.c() == ' ') signs.Next();
  if (signs.Is(kIsSign)) {
    signs.SkipAll(kIsSign);
    signs.SkipAll(kIsNewline);
    return signs.at();
  }
  return cursor.Is(kIsSpace) ? WhiteSpace(cursor, /*newlines=*/true) : nullptr;
}

// What the third pattern does not match stays together.
const char* DeepSeekWord(Cursor cursor, const char* /*end*/) {
  if (cursor.Is(kIsNumber)) return Digits(cursor, 3);
  PieceCursor piece(cursor);
  if (const char* const match = DeepSeekMatch(piece)) return match;
  do piece.Next();
  while (!piece.at_end() && DeepSeekMatch(piece) == nullptr);
  return piece.at();
}

// Before letters stands here whatever is no letter or line end; behind a sign only ASCII letters follow.
const char* EasyDeepSeekWord(const KindTable& kinds, const char* at, const char* end) {
  const bool has_prefix = static_cast<unsigned char>(*at) < 0x80 &&
                          !IsAsciiKind(kinds, at, end, kIsLetter | kIsNewline | kIsNumber);
  return EasyLetters(kinds, has_prefix ? at + 1 : at, end);
}

}  // namespace

std::span<const std::string_view> PatternsOf(Scanner scanner) {
  switch (scanner) {
    case Scanner::kGpt2:
      return {kGpt2Patterns, 1};
    case Scanner::kLlama3:
      return kLlama3Patterns;
    case Scanner::kQwen:
      return kQwenPatterns;
    case Scanner::kO200k:
      return kO200kPatterns;
    case Scanner::kTekken:
      return kTekkenPatterns;
    case Scanner::kDeepSeek:
      return kDeepSeekPatterns;
  }
  return {};
}

std::optional<Scanner> ScannerOf(std::string_view pattern) {
  for (const Scanner scanner :
       {Scanner::kGpt2, Scanner::kLlama3, Scanner::kQwen, Scanner::kO200k, Scanner::kTekken}) {
    if (pattern == PatternsOf(scanner)[0]) return scanner;
  }
  if (pattern == kGpt2Patterns[1]) return Scanner::kGpt2;
  return std::nullopt;
}

void Scan(Scanner scanner, std::string_view text, std::vector<std::uint32_t>* ends, ScannerSpeed speed) {
  const BlockScanner blocks = BlockScannerOf(scanner, speed);
  switch (scanner) {
    case Scanner::kGpt2:
      return ScanWords<EasyGpt2Word>(text, blocks, ends, Gpt2Word);
    case Scanner::kLlama3:
      return ScanWords<EasyLlama3Word>(text, blocks, ends,
                                       [](Cursor c, const char* end) { return Llama3Word(c, end, 3); });
    case Scanner::kQwen:
      return ScanWords<EasyLlama3Word>(text, blocks, ends,
                                       [](Cursor c, const char* end) { return Llama3Word(c, end, 1); });
    case Scanner::kO200k:
      return ScanWords<EasyO200kWord>(text, blocks, ends,
                                      [](Cursor c, const char* end) { return O200kWord(c, end, true, 3); });
    case Scanner::kTekken:
      return ScanWords<EasyO200kWord>(text, blocks, ends,
                                      [](Cursor c, const char* end) { return O200kWord(c, end, false, 1); });
    case Scanner::kDeepSeek:
      return ScanWords<EasyDeepSeekWord>(text, blocks, ends, DeepSeekWord);
  }
}

}  // namespace engine::tokenizer

#include "engine/data/tokenizer/normal_form.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

// Hangul syllables decompose and compose by arithmetic (The Unicode Standard, 3.12).
constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

struct Character {
  char32_t code_point;
  std::uint8_t combining_class;
};

void Decompose(char32_t c, bool compatibility, std::vector<Character>* out) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t index = c - kSyllables;
    out->push_back({kLeading + index / (kVowelCount * kTrailingCount), 0});
    out->push_back({kVowels + index / kTrailingCount % kVowelCount, 0});
    if (index % kTrailingCount != 0) out->push_back({kTrailing + index % kTrailingCount, 0});
    return;
  }
  const Decomposition decomposition = DecompositionOf(c);
  if (decomposition.to.empty() || (decomposition.is_compatibility && !compatibility)) {
    out->push_back({c, CombiningClass(c)});
    return;
  }
  for (const char32_t part : decomposition.to) Decompose(part, compatibility, out);
}

char32_t Compose(char32_t first, char32_t second) {
  if (first >= kLeading && first < kLeading + kLeadingCount && second >= kVowels &&
      second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount &&
      (first - kSyllables) % kTrailingCount == 0 && second > kTrailing &&
      second < kTrailing + kTrailingCount) {
    return first + (second - kTrailing);
  }
  return Composite(first, second);
}

// Canonical composition, in place: each character joins the last starter before it if no character between the two
// is a starter or of the same or a higher class.
void ComposeAll(std::vector<Character>* text) {
  std::vector<Character>& characters = *text;
  std::size_t kept = 0;
  std::size_t starter = characters.size();
  int last_class = -1;  // of what is kept behind the starter
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const Character c = characters[i];
    if (starter < kept && last_class < static_cast<int>(c.combining_class)) {
      const char32_t composite = Compose(characters[starter].code_point, c.code_point);
      if (composite != 0) {
        characters[starter].code_point = composite;
        continue;
      }
    }
    if (c.combining_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = c.combining_class;
    }
    characters[kept++] = c;
  }
  characters.resize(kept);
}

}  // namespace

void AppendNormalForm(std::string_view text, NormalForm form, std::string* out) {
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  std::vector<Character> characters;
  for (std::size_t at = 0; at < text.size();) {
    // ASCII stays as it is; only the last one before something else may join it.
    std::size_t plain = at;
    while (plain < text.size() && static_cast<unsigned char>(text[plain]) < 0x80) ++plain;
    if (plain < text.size() && plain > at) --plain;
    out->append(text, at, plain - at);
    at = plain;
    if (at == text.size()) break;
    characters.clear();
    do {  // to the next ASCII character, which is a starter and joins nothing before it
      char32_t c = 0;
      at += DecodeUtf8(text.substr(at), &c);
      Decompose(c, compatibility, &characters);
    } while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80);
    for (auto begin = characters.begin(); begin != characters.end();) {
      if (begin->combining_class == 0) {
        ++begin;
        continue;
      }
      const auto end =
          std::find_if(begin, characters.end(), [](Character c) { return c.combining_class == 0; });
      std::stable_sort(begin, end,
                       [](Character a, Character b) { return a.combining_class < b.combining_class; });
      begin = end;
    }
    if (composes) ComposeAll(&characters);
    for (const Character c : characters) AppendUtf8(c.code_point, out);
  }
}

bool IsPlainlyNfc(std::string_view text) {
  constexpr std::uint64_t kNotAscii = 0x8080808080808080U;
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = kNotAscii;
    if (text.size() - at >= sizeof eight) std::memcpy(&eight, text.data() + at, sizeof eight);
    if ((eight & kNotAscii) == 0) {
      at += sizeof eight;
      continue;
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    char32_t c = 0;
    at += DecodeUtf8(text.substr(at), &c);
    if (Is(c, kActsInNfc)) return false;
  }
  return true;
}

}  // namespace engine::tokenizer

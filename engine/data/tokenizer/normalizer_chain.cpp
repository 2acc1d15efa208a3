#include "engine/data/tokenizer/normalizer_chain.h"

#include <optional>

#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/chars_map.h"
#include "engine/data/tokenizer/graphemes.h"
#include "engine/data/tokenizer/regex.h"
#include "engine/data/tokenizer/replace.h"
#include "engine/data/tokenizer/trie.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

template <typename Visit>
void ForCharacters(std::string_view text, Visit visit) {
  for (std::size_t at = 0; at < text.size();) {
    char32_t c = 0;
    at += DecodeUtf8(text.substr(at), &c);
    visit(c);
  }
}

void AppendLowercase(std::string_view text, std::string* out) {
  ForCharacters(text, [out](char32_t c) {
    const std::span<const std::uint32_t> lower = LowerCase(c);
    if (lower.empty()) AppendUtf8(c, out);
    for (const char32_t part : lower) AppendUtf8(part, out);
  });
}

// SentencePiece's rules of "nmt" (its builder.cc): what becomes a blank, and what vanishes.
void AppendNmt(std::string_view text, std::string* out) {
  ForCharacters(text, [out](char32_t c) {
    const bool vanishes =
        (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    const bool is_blank = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                          c == 0xFEFF || c == 0xFFFD;
    if (!vanishes) AppendUtf8(is_blank ? U' ' : c, out);
  });
}

std::string_view StripWhiteSpace(std::string_view text, const StripEnds& ends) {
  char32_t c = 0;
  while (ends.left && !text.empty()) {
    const std::size_t length = DecodeUtf8(text, &c);
    if (!Is(c, kWhiteSpace)) break;
    text.remove_prefix(length);
  }
  while (ends.right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    DecodeUtf8(text.substr(at), &c);
    if (!Is(c, kWhiteSpace)) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

// The ideographs around which BERT puts blanks (tokenization.py of Devlin et al. 2018, with one block of the reference
// library's own).
bool IsChineseCharacter(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (const auto& [first, last] : kBlocks) {
    if (c >= first && c <= last) return true;
  }
  return false;
}

void AppendBert(std::string_view text, const BertNormalize& bert, std::string* out) {
  std::string first;
  ForCharacters(text, [&](char32_t c) {
    if (bert.clean_text) {
      const bool is_blank = c == '\t' || c == '\n' || c == '\r' || Is(c, kWhiteSpace);
      if (c == 0 || c == 0xFFFD || (c != '\t' && c != '\n' && c != '\r' && Is(c, kOldControl))) return;
      if (is_blank) c = ' ';
    }
    const bool is_spaced = bert.handle_chinese_chars && IsChineseCharacter(c);
    if (is_spaced) first += ' ';
    AppendUtf8(c, &first);
    if (is_spaced) first += ' ';
  });
  if (bert.strip_accents) {
    std::string decomposed;
    AppendNormalForm(first, NormalForm::kNfd, &decomposed);
    first.clear();
    ForCharacters(decomposed, [&](char32_t c) {
      if (!Is(c, kOldNonspacing)) AppendUtf8(c, &first);
    });
  }
  bert.lowercase ? AppendLowercase(first, out) : void(*out += first);
}

// The reference library looks the table up once a cluster of less than six bytes, and takes the shortest string of the
// table that the cluster begins with for all of it; else once a character.
void AppendMapped(std::string_view text, const CharsMap& map, std::string* out) {
  constexpr std::size_t kMostClusterBytes = 5;
  const auto is_ascii = [&text](std::size_t at) { return static_cast<unsigned char>(text[at]) < 0x80; };
  while (!text.empty()) {
    // ASCII before ASCII is a cluster by itself, but for CR LF.
    if (is_ascii(0) && text[0] != '\r' && (text.size() == 1 || is_ascii(1))) {
      const std::optional<CharsMap::Match>& match = map.OfAscii(text[0]);
      match.has_value() ? void(*out += match->becomes) : out->push_back(text[0]);
      text.remove_prefix(1);
      continue;
    }
    const std::string_view cluster = text.substr(0, GraphemeBytes(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() <= kMostClusterBytes) {
      if (const std::optional<CharsMap::Match> match = map.Shortest(cluster)) {
        *out += match->becomes;
        continue;
      }
    }
    for (std::size_t at = 0; at < cluster.size();) {
      char32_t c = 0;
      const std::string_view character = cluster.substr(at, DecodeUtf8(cluster.substr(at), &c));
      const std::optional<CharsMap::Match> match = map.Shortest(character);
      *out += match.has_value() ? match->becomes : character;
      at += character.size();
    }
  }
}

Trie TrieOfPieces(const std::vector<std::string>& pieces) {
  std::vector<std::pair<std::string_view, std::int32_t>> strings;
  strings.reserve(pieces.size());
  for (const std::string& piece : pieces)
    strings.emplace_back(piece, static_cast<std::int32_t>(strings.size()));
  return Trie(std::move(strings));
}

// SentencePiece's normalizer.cc, step by step.
class SentencePieceText {
 public:
  SentencePieceText(const SentencePieceNormalize& rules, const CharsMap& map, const Trie& user_defined)
      : rules_(rules), map_(map), user_defined_(user_defined) {}

  void Append(std::string_view text, std::string* out) const {
    const auto next = [&] {
      const auto [bytes, becomes] = First(text);
      text.remove_prefix(bytes);
      return becomes;
    };
    std::string_view part;
    while (rules_.remove_extra_whitespaces && !text.empty()) {
      if (First(text).second != " ") break;
      next();
    }
    if (text.empty()) return;
    const std::size_t begin = out->size();
    const std::string_view blank = rules_.escape_whitespaces ? kBlankSymbol : " ";
    if (rules_.add_dummy_prefix && !rules_.whitespace_is_suffix) *out += blank;
    bool is_behind_blank = rules_.remove_extra_whitespaces;
    while (!text.empty()) {
      part = next();
      while (is_behind_blank && part.starts_with(' ')) part.remove_prefix(1);
      for (const char c : part) c == ' ' ? void(*out += blank) : out->push_back(c);
      if (!part.empty()) is_behind_blank = part.ends_with(' ');
      if (!rules_.remove_extra_whitespaces) is_behind_blank = false;
    }
    while (rules_.remove_extra_whitespaces && std::string_view(*out).substr(begin).ends_with(blank)) {
      out->resize(out->size() - blank.size());
    }
    if (rules_.add_dummy_prefix && rules_.whitespace_is_suffix) *out += blank;
  }

 private:
  // Bytes of the first unit of the text, and what becomes of it.
  std::pair<std::size_t, std::string_view> First(std::string_view text) const {
    std::size_t own = 0;
    user_defined_.ForPrefixes(text, [&own](std::size_t bytes, std::int32_t) { own = bytes; });
    if (own > 0) return {own, text.substr(0, own)};
    if (const std::optional<CharsMap::Match> match = map_.Longest(text))
      return {match->bytes, match->becomes};
    char32_t c = 0;
    const std::size_t bytes = DecodeUtf8(text, &c);
    return {bytes, text.substr(0, bytes)};
  }

  const SentencePieceNormalize& rules_;
  const CharsMap& map_;
  const Trie& user_defined_;
};

}  // namespace

struct NormalizerChain::Step {
  Normalizer what;
  std::optional<Replacer> replacer;
  CharsMap map;
  Trie user_defined;

  absl::Status Append(std::string_view text, std::string* out) const {
    if (const auto* form = std::get_if<ToNormalForm>(&what)) {
      AppendNormalForm(text, form->form, out);
    } else if (std::holds_alternative<ToLowercase>(what)) {
      AppendLowercase(text, out);
    } else if (std::holds_alternative<StripAccents>(what)) {
      ForCharacters(text, [out](char32_t c) {
        if (!Is(c, kCombining)) AppendUtf8(c, out);
      });
    } else if (std::holds_alternative<CleanNmt>(what)) {
      AppendNmt(text, out);
    } else if (const auto* ends = std::get_if<StripEnds>(&what)) {
      *out += StripWhiteSpace(text, *ends);
    } else if (const auto* prepend = std::get_if<Prepend>(&what)) {
      if (!text.empty()) *out += prepend->text;
      *out += text;
    } else if (replacer.has_value()) {
      return replacer->Append(text, out);
    } else if (const auto* bert = std::get_if<BertNormalize>(&what)) {
      AppendBert(text, *bert, out);
    } else if (std::holds_alternative<MapCharacters>(what)) {
      AppendMapped(text, map, out);
    } else if (std::holds_alternative<ShowBytes>(what)) {
      for (const char c : text) AppendByteCharacter(static_cast<unsigned char>(c), out);
    } else {
      SentencePieceText(std::get<SentencePieceNormalize>(what), map, user_defined).Append(text, out);
    }
    return absl::OkStatus();
  }
};

NormalizerChain::NormalizerChain() = default;
NormalizerChain::NormalizerChain(NormalizerChain&&) noexcept = default;
NormalizerChain& NormalizerChain::operator=(NormalizerChain&&) noexcept = default;
NormalizerChain::~NormalizerChain() = default;

absl::StatusOr<NormalizerChain> NormalizerChain::Make(const std::vector<Normalizer>& normalizers) {
  NormalizerChain chain;
  for (const Normalizer& normalizer : normalizers) {
    auto step = std::make_unique<Step>();
    step->what = normalizer;
    if (const auto* replace = std::get_if<Replace>(&normalizer)) {
      ASSIGN_OR_RETURN(step->replacer, Replacer::Make(*replace));
    } else if (const auto* mapped = std::get_if<MapCharacters>(&normalizer)) {
      ASSIGN_OR_RETURN(step->map, CharsMap::Parse(mapped->charsmap));
    } else if (const auto* pieces = std::get_if<SentencePieceNormalize>(&normalizer)) {
      ASSIGN_OR_RETURN(step->map, CharsMap::Parse(pieces->charsmap));
      step->user_defined = TrieOfPieces(pieces->user_defined);
    }
    chain.steps_.push_back(std::move(step));
  }
  return chain;
}

absl::StatusOr<std::string_view> NormalizerChain::Apply(std::string_view text, std::string* storage) const {
  if (steps_.empty()) return text;
  if (steps_.size() == 1) {
    const auto* form = std::get_if<ToNormalForm>(&steps_[0]->what);
    if (form != nullptr && form->form == NormalForm::kNfc && IsPlainlyNfc(text)) return text;
  }
  std::string other;
  std::string* to = storage;
  for (const std::unique_ptr<Step>& step : steps_) {
    other.clear();
    RETURN_IF_ERROR(step->Append(text, &other));
    std::swap(other, *to);
    text = *to;
  }
  return text;
}

}  // namespace engine::tokenizer

#include "engine/data/tokenizer/token_places.h"

#include <algorithm>
#include <charconv>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

// Length of the white space character that the text begins with, or 0.
std::size_t SpaceLength(std::string_view text) {
  char32_t c = 0;
  const std::size_t length = text.empty() ? 0 : DecodeUtf8(text, &c);
  return length > 0 && Is(c, kWhiteSpace) ? length : 0;
}

std::size_t CharacterLength(std::string_view text) {
  char32_t c = 0;
  return std::max<std::size_t>(1, DecodeUtf8(text, &c));
}

// The byte of a token "<0x0A>".
std::optional<char> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto read = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return read.ptr == token.data() + 5 ? std::optional(static_cast<char>(value)) : std::nullopt;
}

// Whether [begin, end), or where it is empty its place, has a byte in a span.
bool Overlaps(std::span<const ByteSpan> spans, std::size_t begin, std::size_t end) {
  const auto span = std::upper_bound(spans.begin(), spans.end(), begin,
                                     [](std::size_t at, const ByteSpan& one) { return at < one.second; });
  return span != spans.end() && span->first < std::max(end, begin + 1);
}

}  // namespace

struct TokenPlaces::Walk {
  std::span<const std::int32_t> ids;
  std::span<const ByteSpan> spans;
  std::vector<std::uint8_t>* marks;
  std::size_t at() const { return marks->size(); }
  bool ended() const { return at() >= ids.size(); }
};

absl::StatusOr<TokenPlaces> TokenPlaces::Make(const Description& description) {
  TokenPlaces places(description);
  RETURN_IF_ERROR(places.Prepare());
  return places;
}

absl::Status TokenPlaces::Prepare() {
  ASSIGN_OR_RETURN(normalizer_, NormalizerChain::Make(description_->normalizers));
  std::vector<std::pair<std::string, AddedToken>> raw;
  for (const AddedToken& token : description_->added_tokens) {
    if (!token.normalized) {
      raw.emplace_back(token.content, token);
      continue;
    }
    std::string storage;
    ASSIGN_OR_RETURN(const std::string_view text, normalizer_->Apply(token.content, &storage));
    added_[token.id] = text;
  }
  raw_tokens_ = AddedTokenFinder(raw);
  for (const PreTokenizer& cutter : description_->pre_tokenizers) {
    shows_bytes_ = shows_bytes_ || std::holds_alternative<SplitBytes>(cutter);
    if (const auto* metaspace = std::get_if<Metaspace>(&cutter)) blank_ = metaspace->replacement;
  }
  if (const auto* bpe = std::get_if<BpeModel>(&description_->model)) {
    byte_fallback_ = bpe->byte_fallback;
    prefix_ = bpe->continuing_prefix;
    suffix_ = bpe->end_suffix;
  } else if (const auto* unigram = std::get_if<UnigramModel>(&description_->model)) {
    byte_fallback_ = unigram->byte_fallback;
  } else if (const auto* word_piece = std::get_if<WordPieceModel>(&description_->model)) {
    prefix_ = word_piece->continuing_prefix;
  }
  unknown_ = std::visit([](const auto& model) { return model.unknown; }, description_->model);
  return absl::OkStatus();
}

absl::Status TokenPlaces::Mark(std::string_view text, std::span<const std::int32_t> ids,
                               std::span<const ByteSpan> spans, std::vector<std::uint8_t>* marks) const {
  marks->clear();
  Walk walk{.ids = ids, .spans = spans, .marks = marks};
  std::vector<Segment> segments;
  raw_tokens_.Cut(text, /*special=*/true, &segments);
  for (const Segment& segment : segments) {
    const auto begin = static_cast<std::size_t>(segment.text.data() - text.data());
    if (segment.id == kNoToken) {
      RETURN_IF_ERROR(MarkBetween(segment.text, begin, &walk));
    } else if (walk.ended() || ids[walk.at()] != segment.id) {
      return InvalidArgument("the token \"{}\" stands in the text at byte {}, but not among its ids",
                             Shown(segment.text), begin);
    } else {
      marks->push_back(Overlaps(spans, begin, begin + segment.text.size()) ? 1 : 0);
    }
  }
  if (!walk.ended())
    return InvalidArgument("the text has ended before its {} ids, at id {}", ids.size(), walk.at());
  return absl::OkStatus();
}

// What is before the border is normalized as if a letter came behind it, so that a blank at its end stays. Where that is not how the whole
// begins, something on both sides has become one character, behind which the place is.
absl::StatusOr<std::size_t> TokenPlaces::PlaceOf(std::string_view text, std::string_view normalized,
                                                 std::size_t border) const {
  if (border == 0 || text.data() == normalized.data()) return border;
  if (border == text.size()) return normalized.size();
  std::string storage;
  const std::string followed = std::string(text.substr(0, border)) + "a";
  ASSIGN_OR_RETURN(std::string_view before, normalizer_->Apply(followed, &storage));
  if (before.ends_with('a')) before.remove_suffix(1);
  const auto differs =
      std::mismatch(before.begin(), before.end(), normalized.begin(), normalized.end()).first;
  auto at = static_cast<std::size_t>(differs - before.begin());
  if (differs == before.end() || at >= normalized.size()) return at;
  while (at > 0 && (static_cast<unsigned char>(normalized[at]) & 0xC0U) == 0x80) --at;
  return at + CharacterLength(normalized.substr(at));
}

// `text`, which begins at byte `begin` of the whole, lies between added tokens.
absl::Status TokenPlaces::MarkBetween(std::string_view text, std::size_t begin, Walk* walk) const {
  std::string storage;
  ASSIGN_OR_RETURN(const std::string_view normalized, normalizer_->Apply(text, &storage));
  std::vector<ByteSpan> spans;  // of the normalized text
  for (const auto& [from, to] : walk->spans) {
    const std::size_t first = std::max(from, begin);
    const std::size_t last = std::min(to, begin + text.size());
    if (first >= last) continue;
    ASSIGN_OR_RETURN(const std::size_t inner, PlaceOf(text, normalized, first - begin));
    ASSIGN_OR_RETURN(const std::size_t outer, PlaceOf(text, normalized, last - begin));
    if (inner < outer) spans.emplace_back(inner, outer);
  }
  std::size_t at = 0;
  bool is_first = true;  // behind nothing, or behind an added token
  while (at < normalized.size()) {
    const std::string_view rest = normalized.substr(at);
    const std::int32_t id = walk->ended() ? kNoToken : walk->ids[walk->at()];
    std::optional<std::size_t> length = id == kNoToken ? std::nullopt : Spelled(id, rest, is_first);
    if (!length.has_value() && SpaceLength(rest) > 0) {  // which no token has
      at += SpaceLength(rest);
      continue;
    }
    if (!length.has_value() && IsUnknown(id)) {
      // Up to where the next token stands.
      const std::int32_t next = walk->at() + 1 < walk->ids.size() ? walk->ids[walk->at() + 1] : kNoToken;
      length = CharacterLength(rest);
      while (*length < rest.size() && !(next != kNoToken && Spelled(next, rest.substr(*length), false)) &&
             SpaceLength(rest.substr(*length)) == 0)
        *length += CharacterLength(rest.substr(*length));
    }
    if (!length.has_value()) {
      return InvalidArgument(
          "the text at \"{}\" is not what its token {} spells, so that places of tokens in it cannot be told",
          Shown(rest, 20), id);
    }
    walk->marks->push_back(Overlaps(spans, at, at + *length) ? 1 : 0);
    at += *length;
    is_first = added_.contains(id);
  }
  return absl::OkStatus();
}

std::optional<std::size_t> TokenPlaces::Spelled(std::int32_t id, std::string_view text, bool is_first) const {
  if (const auto added = added_.find(id); added != added_.end()) {
    std::size_t spaces = 0;  // which it may take on its left
    while (SpaceLength(text.substr(spaces)) > 0 && !text.substr(spaces).starts_with(added->second))
      spaces += SpaceLength(text.substr(spaces));
    return text.substr(spaces).starts_with(added->second) ? std::optional(spaces + added->second.size())
                                                          : std::nullopt;
  }
  std::string_view token = VocabularyOf(description_->model).Token(id);
  std::string bytes;
  if (shows_bytes_ && BytesShownBy(token, &bytes)) {
    if (text.starts_with(bytes)) return bytes.size();
    if (is_first && bytes.starts_with(' ') && text.starts_with(std::string_view(bytes).substr(1)))
      return bytes.size() - 1;
    return std::nullopt;
  }
  if (const auto spelled = SpelledBy(token, text, is_first)) return spelled;
  const std::optional<char> byte = byte_fallback_ ? ByteOfToken(token) : std::nullopt;
  if (byte.has_value() && text.starts_with(*byte)) return 1;
  if (!prefix_.empty() && token.starts_with(prefix_)) token.remove_prefix(prefix_.size());
  if (!suffix_.empty() && token.ends_with(suffix_)) token.remove_suffix(suffix_.size());
  return SpelledBy(token, text, is_first);
}

std::optional<std::size_t> TokenPlaces::SpelledBy(std::string_view token, std::string_view text,
                                                  bool is_first) const {
  if (token.empty()) return std::nullopt;
  std::size_t at = 0;
  for (std::size_t i = 0; i < token.size();) {
    if (!blank_.empty() && token.substr(i).starts_with(blank_)) {
      if (text.substr(at).starts_with(' ')) {
        ++at;
        i += blank_.size();
        continue;
      }
      if (i == 0 && is_first && !text.starts_with(blank_)) {  // which was put in front
        i += blank_.size();
        continue;
      }
    }
    if (at >= text.size() || text[at] != token[i]) return std::nullopt;
    ++at;
    ++i;
  }
  return at;
}

}  // namespace engine::tokenizer

#include "engine/data/tokenizer/word_borders.h"

#include "engine/data/tokenizer/utf8.h"

namespace engine::tokenizer {

namespace {

constexpr char32_t kBlankSymbol32 = U'\u2581';

}  // namespace

std::optional<WordBorders> WordBorders::Of(const Model& model) {
  const auto* bpe = std::get_if<BpeModel>(&model);
  if (bpe == nullptr || bpe->ignore_merges || !bpe->continuing_prefix.empty() || !bpe->end_suffix.empty())
    return std::nullopt;
  WordBorders borders;
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    borders.joins_[kind][kOther] = borders.joins_[kOther][kind] = true;
  const auto kind_of = [](char32_t c) {
    return c < 0x80 ? static_cast<std::size_t>(c) : c == kBlankSymbol32 ? kBlank : kOther;
  };
  // What stands for a byte shows nothing of the characters beside which it comes.
  const auto shows_byte = [&](std::int32_t id) {
    const std::string_view token = bpe->vocabulary.Token(id);
    return bpe->byte_fallback && token.size() == 6 && token.starts_with("<0x");
  };
  for (const Merge& merge : bpe->merges) {
    if (shows_byte(merge.left) || shows_byte(merge.right)) return std::nullopt;
    const std::string_view token = bpe->vocabulary.Token(merge.product);
    char32_t before = 0;
    for (std::size_t at = 0; at < token.size();) {
      char32_t c = 0;
      const std::size_t length = DecodeUtf8(token.substr(at), &c);
      if (length == 0) return std::nullopt;
      if (at > 0) borders.joins_[kind_of(before)][kind_of(c)] = true;
      if (at > 0 && c == kBlankSymbol32) borders.joins_blank_.insert(before);
      before = c;
      at += length;
    }
  }
  // Two characters without tokens are joined where unknown neighbours are one.
  const auto is_token = [&](char32_t c) {
    std::string character;
    AppendUtf8(c, &character);
    return bpe->vocabulary.Find(character) != kNoToken;
  };
  for (char32_t before = 0; before <= kBlank; ++before) {
    if (is_token(before == kBlank ? kBlankSymbol32 : before)) continue;
    borders.joins_[before].fill(true);
    for (std::array<bool, kKinds>& row : borders.joins_) row[before] = true;
    if (before == kBlank) return std::nullopt;
  }
  return borders;
}

void WordBorders::Cut(std::string_view text, std::vector<std::uint32_t>* ends) const {
  std::size_t kind = 0;
  char32_t c = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::size_t kind_before = kind;
    const char32_t before = c;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {
      c = kind = byte;
      ++at;
    } else {
      at += DecodeUtf8(text.substr(at), &c);
      kind = c == kBlankSymbol32 ? kBlank : kOther;
    }
    if (begin == 0) continue;
    const bool joins =
        kind_before == kOther && kind == kBlank ? joins_blank_.contains(before) : joins_[kind_before][kind];
    if (!joins) ends->push_back(static_cast<std::uint32_t>(begin));
  }
  ends->push_back(static_cast<std::uint32_t>(text.size()));
}

}  // namespace engine::tokenizer

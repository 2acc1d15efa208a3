#include "engine/data/tokenizer/word_borders.h"

#include <algorithm>

#include "engine/data/tokenizer/utf8.h"

namespace engine::tokenizer {
namespace {

constexpr std::string_view kWordBlank = "\u2581";

char32_t CharacterBefore(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  char32_t c = 0;
  DecodeUtf8(text.substr(at), &c);
  return c;
}

}  // namespace

std::optional<WordBorders> WordBorders::Of(const Model& model) {
  const auto* bpe = std::get_if<BpeModel>(&model);
  if (bpe == nullptr || bpe->ignore_merges || !bpe->continuing_prefix.empty() || !bpe->end_suffix.empty() ||
      bpe->vocabulary.Find(kWordBlank) == kNoToken) {
    return std::nullopt;
  }
  WordBorders borders;
  borders.joins_other_.insert(U'\u2581');
  for (const Merge& merge : bpe->merges) {
    const std::string_view token = bpe->vocabulary.Token(merge.product);
    for (std::size_t at = token.find(kWordBlank, 1); at != std::string_view::npos;
         at = token.find(kWordBlank, at + 1)) {
      const char32_t before = CharacterBefore(token.substr(0, at));
      if (before < 0x80) {
        borders.joins_byte_[before] = true;
      } else {
        borders.joins_other_.insert(before);
      }
    }
  }
  return borders;
}

bool WordBorders::JoinsBlank(std::string_view before) const {
  const auto last = static_cast<unsigned char>(before.back());
  return last < 0x80 ? joins_byte_[last] : joins_other_.contains(CharacterBefore(before));
}

void WordBorders::Cut(std::string_view text, std::vector<std::uint32_t>* ends) const {
  std::size_t begin = 0;
  for (std::size_t at = text.find(kWordBlank, 1); at != std::string_view::npos;
       at = text.find(kWordBlank, at + 1)) {
    if (JoinsBlank(text.substr(begin, at - begin))) continue;
    ends->push_back(static_cast<std::uint32_t>(at));
    begin = at;
  }
  ends->push_back(static_cast<std::uint32_t>(text.size()));
}

}  // namespace engine::tokenizer

#include "engine/data/tokenizer/word_borders.h"

#include <algorithm>

#include "engine/data/tokenizer/read_model.h"
#include "engine/data/tokenizer/utf8.h"

namespace engine::tokenizer {

namespace {

constexpr char32_t kBlankSymbol32 = U'\u2581';

}  // namespace

std::optional<WordBorders> WordBorders::Of(const Model& model, bool spaces_are_blanks) {
  const auto* bpe = std::get_if<BpeModel>(&model);
  if (bpe == nullptr || bpe->ignore_merges || !bpe->continuing_prefix.empty() || !bpe->end_suffix.empty())
    return std::nullopt;
  WordBorders borders;
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    borders.joins_[kind][kOther] = borders.joins_[kOther][kind] = kYes;
  borders.joins_[kOther][kBlank] = kSome;
  const auto kind_of = [](char32_t c) {
    return c < 0x80 ? static_cast<std::size_t>(c) : c == kBlankSymbol32 ? kBlank : kOther;
  };
  // What stands for a byte shows nothing of the characters beside which it comes.
  const auto shows_byte = [&](std::int32_t id) {
    const std::string_view token = bpe->vocabulary.Token(id);
    return bpe->byte_fallback && token.size() == 6 && token.starts_with("<0x");
  };
  enum : std::uint8_t { kPart = 1, kProduct = 2 };
  std::vector<std::uint8_t> uses(static_cast<std::size_t>(bpe->vocabulary.size()), 0);  // by id
  for (const Merge& merge : bpe->merges) {
    uses[static_cast<std::size_t>(merge.left)] |= kPart;
    uses[static_cast<std::size_t>(merge.right)] |= kPart;
    uses[static_cast<std::size_t>(merge.product)] |= kProduct;
  }
  for (std::int32_t id = 0; id < bpe->vocabulary.size(); ++id) {
    const std::uint8_t use = uses[static_cast<std::size_t>(id)];
    if ((use & kPart) != 0 && shows_byte(id)) return std::nullopt;
    if ((use & kProduct) == 0) continue;
    const std::string_view token = bpe->vocabulary.Token(id);
    char32_t before = 0;
    for (std::size_t at = 0; at < token.size();) {
      char32_t c = static_cast<unsigned char>(token[at]);
      const std::size_t length = c < 0x80 ? 1 : DecodeUtf8(token.substr(at), &c);
      if (length == 0) return std::nullopt;
      if (at > 0) {
        Joins& joins = borders.joins_[kind_of(before)][kind_of(c)];
        joins == kSome ? void(borders.joins_blank_.insert(before)) : void(joins = kYes);
      }
      before = c;
      at += length;
    }
  }
  // Two characters without tokens are joined where unknown neighbours are one. What becomes bytes is not unknown.
  const auto is_token = [&](char32_t c) {
    std::string character;
    AppendUtf8(c, &character);
    if (bpe->vocabulary.Find(character) != kNoToken) return true;
    return bpe->byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
             return bpe->vocabulary.Find(ByteToken(static_cast<unsigned char>(byte))) != kNoToken;
           });
  };
  for (char32_t before = 0; before <= kBlank; ++before) {
    if (is_token(before == kBlank ? kBlankSymbol32 : before)) continue;
    borders.joins_[before].fill(kYes);
    for (Row& row : borders.joins_) row[before] = kYes;
    if (before == kBlank) return std::nullopt;
  }
  if (spaces_are_blanks) {
    borders.joins_[' '] = borders.joins_[kBlank];
    for (Row& row : borders.joins_) row[' '] = row[kBlank];
  }
  return borders;
}

void WordBorders::Cut(std::string_view text, std::vector<std::uint32_t>* ends) const {
  constexpr std::size_t kTogether = 1024;
  static constexpr Row kFirst = [] {  // no end stands before the text
    Row row;
    row.fill(kYes);
    return row;
  }();
  const Row* row = &kFirst;
  char32_t before = 0;  // where that is one of the others
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t count = ends->size();
    ends->resize(count + std::min(kTogether, text.size() - at));
    std::uint32_t* out = ends->data() + count;
    const std::size_t stop = std::min(at + kTogether, text.size());
    // Writes each place and keeps those where an end is: where that is no processor can foresee.
    const auto put = [&](std::size_t place, Joins joins) {
      if (joins == kSome) joins = joins_blank_.contains(before) ? kYes : kNo;
      *out = static_cast<std::uint32_t>(place);
      out += joins == kNo;
    };
    while (at < stop) {
      const auto byte = static_cast<unsigned char>(text[at]);
      if (byte < 0x80) {
        put(at, (*row)[byte]);
        row = &joins_[byte];
        ++at;
        continue;
      }
      char32_t c = 0;
      const std::size_t length = DecodeUtf8(text.substr(at), &c);
      const std::size_t kind = c == kBlankSymbol32 ? kBlank : kOther;
      put(at, (*row)[kind]);
      row = &joins_[kind];
      before = c;
      at += length;
    }
    ends->resize(static_cast<std::size_t>(out - ends->data()));
  }
  ends->push_back(static_cast<std::uint32_t>(text.size()));
}

bool WordBorders::JoinsBlankBefore(std::string_view text) const {
  const auto byte = static_cast<unsigned char>(text[0]);
  const std::size_t kind = byte < 0x80 ? byte : text.starts_with("\u2581") ? kBlank : kOther;
  return joins_[kBlank][kind] == kYes;
}

}  // namespace engine::tokenizer

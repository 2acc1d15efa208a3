#include "engine/data/tokenizer/word_borders.h"

#include <algorithm>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/data/tokenizer/read_model.h"

namespace engine::tokenizer {

namespace {

constexpr char32_t kBlankSymbol32 = U'\u2581';
char32_t LastCodePoint(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 && (static_cast<unsigned char>(text[--begin]) & 0xC0) == 0x80) {
  }
  char32_t c = 0;
  DecodeUtf8(text.substr(begin), &c);
  return c;
}

}  // namespace

// With which kinds of characters each token of the model begins and ends, by id; kNoCharacter where it stands for a text
// that is not its own: for a byte, or for what is unknown.
std::vector<WordBorders::Ends> WordBorders::EndsOf(const BpeModel& model) {
  const auto kind_of = [](char byte, bool is_blank) {
    const auto c = static_cast<unsigned char>(byte);
    return static_cast<std::uint8_t>(c < 0x80 ? c : is_blank ? kBlank : kOther);
  };
  std::vector<Ends> ends(static_cast<std::size_t>(model.vocabulary.size()), {kNoCharacter, kNoCharacter});
  for (std::int32_t id = 0; id < model.vocabulary.size(); ++id) {
    const std::string_view token = model.vocabulary.Token(id);
    const bool shows_byte = model.byte_fallback && token.size() == 6 && token.starts_with("<0x");
    if (token.empty() || id == model.unknown || shows_byte) continue;
    ends[static_cast<std::size_t>(id)] = {kind_of(token.front(), token.starts_with(kBlankSymbol)),
                                          kind_of(token.back(), token.ends_with(kBlankSymbol))};
  }
  return ends;
}

std::optional<WordBorders> WordBorders::Of(const Model& model, bool spaces_are_blanks) {
  const auto* bpe = std::get_if<BpeModel>(&model);
  if (bpe == nullptr || bpe->ignore_merges || !bpe->continuing_prefix.empty() || !bpe->end_suffix.empty())
    return std::nullopt;
  WordBorders borders;
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    borders.joins_[kind][kOther] = borders.joins_[kOther][kind] = kYes;
  borders.joins_[kOther][kBlank] = kSome;
  const std::vector<Ends> ends = EndsOf(*bpe);
  bool can_cut = true;
  bpe->merges.ForEach([&](const Merge& merge) {
    const std::uint8_t before = ends[static_cast<std::size_t>(merge.left)].last;
    const std::uint8_t behind = ends[static_cast<std::size_t>(merge.right)].first;
    if (before == kNoCharacter || behind == kNoCharacter) {
      can_cut = false;
      return;
    }
    Joins& joins = borders.joins_[before][behind];
    joins == kSome ? void(borders.joins_blank_.insert(LastCodePoint(bpe->vocabulary.Token(merge.left))))
                   : void(joins = kYes);
  });
  if (!can_cut) return std::nullopt;
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

#include "engine/data/tokenizer/raw_parts.h"

#include <algorithm>
#include <string>

#include "engine/base/status.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

bool IsPrintable(int byte) { return byte > 0x20 && byte < 0x7F; }

// Whether what a normalizer does on one side of a place between a printable ASCII character and blanks does not depend on
// the other, and leaves a blank behind that place.
bool IsLocalAtBlanks(const Normalizer& normalizer) {
  if (const auto* replace = std::get_if<Replace>(&normalizer)) {
    const Pattern& pattern = replace->pattern;
    if (!pattern.is_regex) return pattern.text.find_first_of(" \n") == std::string::npos;
    return pattern.text == " {2,}" && (replace->content == " " || replace->content == "\u2581");
  }
  if (const auto* ends = std::get_if<StripEnds>(&normalizer)) return !ends->left;
  return std::holds_alternative<ToNormalForm>(normalizer) ||
         std::holds_alternative<ToLowercase>(normalizer) ||
         std::holds_alternative<StripAccents>(normalizer) || std::holds_alternative<CleanNmt>(normalizer) ||
         std::holds_alternative<MapCharacters>(normalizer);
}

bool SplitsAtBlanks(const std::vector<PreTokenizer>& cutters) {
  if (cutters.empty() || cutters.size() > 2) return false;
  if (cutters.size() == 2 && !std::holds_alternative<SplitWhitespace>(cutters[0])) return false;
  const auto* metaspace = std::get_if<Metaspace>(&cutters.back());
  return metaspace != nullptr && metaspace->split;
}

}  // namespace

absl::StatusOr<std::optional<RawParts>> RawParts::Of(const Description& description,
                                                     const NormalizerChain& normalizer) {
  const std::vector<Normalizer>& normalizers = description.normalizers;
  if (std::any_of(description.added_tokens.begin(), description.added_tokens.end(),
                  [](const AddedToken& token) { return token.normalized; }))
    return std::nullopt;
  RawParts parts;
  const auto* bert = normalizers.size() == 1 ? std::get_if<BertNormalize>(&normalizers[0]) : nullptr;
  if (description.pre_tokenizers.size() == 1 &&
      std::holds_alternative<SplitBert>(description.pre_tokenizers[0]) &&
      (normalizers.empty() || bert != nullptr)) {
    for (const char blank : {' ', '\t', '\n', '\r'})
      parts.classes_[static_cast<unsigned char>(blank)] = Class::kBlank;
    for (int byte = 0; byte < 0x80; ++byte) {
      if (Is(static_cast<char32_t>(byte), kOldPunctuation))
        parts.classes_[static_cast<std::size_t>(byte)] = Class::kSign;
    }
    parts.isolates_ideographs_ = bert != nullptr && bert->handle_chinese_chars;
    return parts;
  }
  if (!SplitsAtBlanks(description.pre_tokenizers) ||
      !std::all_of(normalizers.begin(), normalizers.end(), IsLocalAtBlanks))
    return std::nullopt;
  parts.kind_ = Kind::kBeforeBlanks;
  // Which of both is a blank between two letters when it is normalized, and which signs stay themselves.
  std::string storage;
  for (const char blank : {' ', '\n'}) {
    const std::string text = std::string("a") + blank + "b";
    ASSIGN_OR_RETURN(const std::string_view normalized, normalizer.Apply(text, &storage));
    if (normalized == "a b") parts.classes_[static_cast<unsigned char>(blank)] = Class::kBlank;
  }
  for (int byte = 0; byte < 0x80; ++byte) {
    if (!IsPrintable(byte)) continue;
    const char text = static_cast<char>(byte);
    ASSIGN_OR_RETURN(const std::string_view normalized, normalizer.Apply({&text, 1}, &storage));
    if (normalized.size() == 1 && IsPrintable(static_cast<unsigned char>(normalized[0])))
      parts.classes_[static_cast<std::size_t>(byte)] = Class::kSign;
  }
  if (parts.classes_[' '] != Class::kBlank) return std::nullopt;
  return parts;
}

void RawParts::Cut(std::string_view text, std::vector<std::uint32_t>* begins,
                   std::vector<std::uint32_t>* ends) const {
  kind_ == Kind::kAroundSigns ? CutAroundSigns(text, begins, ends) : CutBeforeBlanks(text, begins, ends);
}

void RawParts::CutAroundSigns(std::string_view text, std::vector<std::uint32_t>* begins,
                              std::vector<std::uint32_t>* ends) const {
  const auto byte_at = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const auto is_ideograph = [&](std::size_t at) {  // E4 B8 80 to E9 BF BF
    const unsigned char lead = byte_at(at);
    return isolates_ideographs_ && lead >= 0xE4 && lead <= 0xE9 && (lead > 0xE4 || byte_at(at + 1) >= 0xB8);
  };
  const auto add = [&](std::size_t begin, std::size_t end) {
    begins->push_back(static_cast<std::uint32_t>(begin));
    ends->push_back(static_cast<std::uint32_t>(end));
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    while (at < text.size() && classes_[byte_at(at)] == Class::kOther && !is_ideograph(at)) ++at;
    if (at > begin) add(begin, at);
    if (at == text.size()) break;
    const std::size_t bytes = byte_at(at) < 0x80 ? 1 : 3;
    if (classes_[byte_at(at)] != Class::kBlank) add(at, at + bytes);
    at += bytes;
  }
}

void RawParts::CutBeforeBlanks(std::string_view text, std::vector<std::uint32_t>* begins,
                               std::vector<std::uint32_t>* ends) const {
  std::uint32_t last = 0;
  for (std::size_t at = 1; at + 1 < text.size(); ++at) {
    if (classes_[static_cast<unsigned char>(text[at])] != Class::kBlank) continue;
    if (classes_[static_cast<unsigned char>(text[at - 1])] != Class::kSign) continue;
    if (static_cast<unsigned char>(text[at + 1]) >= 0x80)
      continue;  // a mark may make something else of the blank
    begins->push_back(last);
    last = static_cast<std::uint32_t>(at);
    ends->push_back(last);
  }
  begins->push_back(last);
  ends->push_back(static_cast<std::uint32_t>(text.size()));
}

}  // namespace engine::tokenizer

#include "engine/data/tokenizer/names.h"

#include <fmt/format.h>

#include <array>

#include "engine/base/shown.h"
#include "engine/data/tokenizer/scanners.h"

namespace engine::tokenizer {
namespace {

// In the order of the variants.
constexpr std::array kNormalizerNames = {
    "",        "Lowercase",      "StripAccents", "Nmt",       "Strip",        "Prepend",
    "Replace", "BertNormalizer", "Precompiled",  "ByteLevel", "SentencePiece"};
static_assert(kNormalizerNames.size() == std::variant_size_v<Normalizer>);
constexpr std::array kPreTokenizerNames = {"ByteLevel",      "Metaspace",       "Split",
                                           "Digits",         "Punctuation",     "BertPreTokenizer",
                                           "Whitespace",     "WhitespaceSplit", "CharDelimiterSplit",
                                           "UnicodeScripts", "FixedLength"};
static_assert(kPreTokenizerNames.size() == std::variant_size_v<PreTokenizer>);
constexpr std::array kDecoderNames = {"ByteLevel", "Metaspace", "WordPiece",  "ByteFallback", "Fuse",
                                      "Strip",     "Replace",   "BPEDecoder", "CTC"};
static_assert(kDecoderNames.size() == std::variant_size_v<Decoder>);

std::string NameOfPattern(const Pattern& pattern) {
  return fmt::format("{} \"{}\"", pattern.is_regex ? "regular expression" : "string",
                     Shown(pattern.text, 60));
}

}  // namespace

std::string NameOf(const Model& model) {
  if (const auto* bpe = std::get_if<BpeModel>(&model)) {
    return fmt::format("BPE of {} merges{}{}", bpe->merges.size(),
                       bpe->byte_fallback ? ", byte fallback" : "",
                       bpe->ignore_merges ? ", whole words first" : "");
  }
  if (const auto* unigram = std::get_if<UnigramModel>(&model)) {
    return fmt::format("Unigram{}", unigram->byte_fallback ? ", byte fallback" : "");
  }
  return std::holds_alternative<WordPieceModel>(model) ? "WordPiece" : "WordLevel";
}

std::vector<std::string> NamesOf(const std::vector<Normalizer>& normalizers) {
  std::vector<std::string> names;
  for (const Normalizer& normalizer : normalizers) {
    if (const auto* form = std::get_if<ToNormalForm>(&normalizer)) {
      constexpr std::array kForms = {"NFC", "NFD", "NFKC", "NFKD"};
      names.emplace_back(kForms[static_cast<std::size_t>(form->form)]);
    } else if (const auto* replace = std::get_if<Replace>(&normalizer)) {
      names.push_back(
          fmt::format("Replace of {} by \"{}\"", NameOfPattern(replace->pattern), Shown(replace->content)));
    } else if (const auto* prepend = std::get_if<Prepend>(&normalizer)) {
      names.push_back(fmt::format("Prepend of \"{}\"", Shown(prepend->text)));
    } else {
      names.emplace_back(kNormalizerNames[normalizer.index()]);
    }
  }
  return names;
}

std::vector<std::string> NamesOf(const std::vector<PreTokenizer>& pre_tokenizers) {
  constexpr std::array kScanners = {"GPT-2", "Llama 3", "Qwen", "o200k", "Tekken", "DeepSeek-V3"};
  std::vector<std::string> names;
  for (const PreTokenizer& pre_tokenizer : pre_tokenizers) {
    std::string name = kPreTokenizerNames[pre_tokenizer.index()];
    if (const auto* split = std::get_if<Split>(&pre_tokenizer)) {
      const std::optional<Scanner> scanner =
          split->pattern.is_regex ? ScannerOf(split->pattern.text) : std::nullopt;
      name += scanner.has_value() ? fmt::format(" as {}", kScanners[static_cast<std::size_t>(*scanner)])
                                  : fmt::format(" at {}", NameOfPattern(split->pattern));
    }
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> NamesOf(const std::vector<Decoder>& decoders) {
  std::vector<std::string> names;
  names.reserve(decoders.size());
  for (const Decoder& decoder : decoders) names.emplace_back(kDecoderNames[decoder.index()]);
  return names;
}

}  // namespace engine::tokenizer

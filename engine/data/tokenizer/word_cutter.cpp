#include "engine/data/tokenizer/word_cutter.h"

#include <algorithm>

#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/replace.h"
#include "engine/data/tokenizer/unicode.h"

namespace engine::tokenizer {
namespace {

// A stretch of a text that a pattern matches, or that lies between two.
struct Stretch {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

void AddStretches(std::string_view text, std::vector<Stretch> stretches, Behavior behavior,
                  std::vector<std::string_view>* words) {
  std::vector<Stretch> kept;
  const auto join_last = [&kept](const Stretch& stretch) { kept.back().end = stretch.end; };
  switch (behavior) {
    case Behavior::kIsolated:
      kept = std::move(stretches);
      break;
    case Behavior::kRemoved:
      std::copy_if(stretches.begin(), stretches.end(), std::back_inserter(kept),
                   [](const Stretch& s) { return !s.is_match; });
      break;
    case Behavior::kContiguous:
      for (const Stretch& stretch : stretches) {
        !kept.empty() && kept.back().is_match == stretch.is_match ? join_last(stretch)
                                                                  : kept.push_back(stretch);
      }
      break;
    case Behavior::kMergedWithPrevious: {
      bool was_match = false;
      for (const Stretch& stretch : stretches) {
        stretch.is_match && !was_match && !kept.empty() ? join_last(stretch) : kept.push_back(stretch);
        was_match = stretch.is_match;
      }
      break;
    }
    case Behavior::kMergedWithNext: {
      bool was_match = false;
      for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
        if (stretch->is_match && !was_match && !kept.empty()) {
          kept.back().begin = stretch->begin;
        } else {
          kept.push_back(*stretch);
        }
        was_match = stretch->is_match;
      }
      std::reverse(kept.begin(), kept.end());
      break;
    }
  }
  for (const Stretch& stretch : kept) {
    if (stretch.end > stretch.begin)
      words->push_back(text.substr(stretch.begin, stretch.end - stretch.begin));
  }
}

// Stretches where `matches` holds of each character are a match a character.
template <typename Test>
std::vector<Stretch> CharacterStretches(std::string_view text, Test matches) {
  std::vector<Stretch> stretches;
  std::size_t last = 0;
  for (std::size_t at = 0; at < text.size();) {
    char32_t c = 0;
    const std::size_t end = at + DecodeUtf8(text.substr(at), &c);
    if (matches(c)) {
      if (at > last) stretches.push_back({last, at, false});
      stretches.push_back({at, end, true});
      last = end;
    }
    at = end;
  }
  if (last < text.size()) stretches.push_back({last, text.size(), false});
  return stretches;
}

template <typename Test>
void CutAt(std::string_view text, Behavior behavior, Test matches, std::vector<std::string_view>* words) {
  AddStretches(text, CharacterStretches(text, matches), behavior, words);
}

void CutWords(std::string_view text, std::vector<std::string_view>* words) {
  const auto kind_at = [&text](std::size_t at, std::size_t* length) {
    char32_t c = 0;
    *length = DecodeUtf8(text.substr(at), &c);
    return Is(c, kWord) ? 1 : Is(c, kWhiteSpace) ? 0 : 2;
  };
  std::size_t length = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const int kind = kind_at(begin, &length);
    std::size_t end = begin + length;
    while (end < text.size() && kind_at(end, &length) == kind) end += length;
    if (kind != 0) words->push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

// What stands before the first character of one script is in no word, as in the reference library.
void CutScripts(std::string_view text, std::vector<std::string_view>* words) {
  int last = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    char32_t c = 0;
    const std::size_t length = DecodeUtf8(text.substr(at), &c);
    const int script = ScriptOf(c);
    if (script != 0 && script != last) {
      if (last != 0) words->push_back(text.substr(begin, at - begin));
      begin = at;
      last = script;
    }
    at += length;
  }
  if (last != 0) words->push_back(text.substr(begin));
}

void CutLength(std::string_view text, std::int64_t characters, std::vector<std::string_view>* words) {
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    for (std::int64_t i = 0; i < characters && end < text.size(); ++i) {
      char32_t c = 0;
      end += DecodeUtf8(text.substr(end), &c);
    }
    words->push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

void CutScanned(Scanner scanner, std::string_view text, CutterWorkspace* work,
                std::vector<std::string_view>* words) {
  work->ends.clear();
  Scan(scanner, text, &work->ends);
  std::uint32_t begin = 0;
  for (const std::uint32_t end : work->ends) {
    words->push_back(text.substr(begin, end - begin));
    begin = end;
  }
}

std::string_view Keep(std::string text, CutterWorkspace* work) {
  return work->texts.emplace_back(std::move(text));
}

}  // namespace

struct WordCutter::Step {
  PreTokenizer what;
  std::optional<Scanner> scanner;
  std::optional<Finder> finder;
  bool keeps_bytes = false;  // SplitBytes: does not show them

  absl::Status Cut(std::string_view text, bool is_first, CutterWorkspace* work,
                   std::vector<std::string_view>* words) const {
    if (scanner.has_value() && std::holds_alternative<Split>(what)) {
      CutScanned(*scanner, text, work, words);
    } else if (const auto* bytes = std::get_if<SplitBytes>(&what)) {
      CutBytes(*bytes, text, work, words);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&what)) {
      CutMetaspace(*metaspace, text, is_first, work, words);
    } else if (const auto* split = std::get_if<Split>(&what)) {
      return CutPattern(*split, text, words);
    } else if (const auto* digits = std::get_if<SplitDigits>(&what)) {
      CutAt(
          text, digits->individual ? Behavior::kIsolated : Behavior::kContiguous,
          [](char32_t c) { return Is(c, kNumeric); }, words);
    } else if (const auto* punctuation = std::get_if<SplitPunctuation>(&what)) {
      CutAt(
          text, punctuation->behavior, [](char32_t c) { return Is(c, kOldPunctuation); }, words);
    } else if (std::holds_alternative<SplitBert>(what)) {
      std::vector<std::string_view> parts;
      CutAt(
          text, Behavior::kRemoved, [](char32_t c) { return Is(c, kWhiteSpace); }, &parts);
      for (const std::string_view part : parts) {
        CutAt(
            part, Behavior::kIsolated, [](char32_t c) { return Is(c, kOldPunctuation); }, words);
      }
    } else if (std::holds_alternative<SplitWords>(what)) {
      CutWords(text, words);
    } else if (std::holds_alternative<SplitWhitespace>(what)) {
      CutAt(
          text, Behavior::kRemoved, [](char32_t c) { return Is(c, kWhiteSpace); }, words);
    } else if (const auto* delimiter = std::get_if<SplitDelimiter>(&what)) {
      char32_t at = 0;
      DecodeUtf8(delimiter->delimiter, &at);
      CutAt(
          text, Behavior::kRemoved, [at](char32_t c) { return c == at; }, words);
    } else if (std::holds_alternative<SplitScripts>(what)) {
      CutScripts(text, words);
    } else {
      CutLength(text, std::get<SplitLength>(what).characters, words);
    }
    return absl::OkStatus();
  }

  void CutBytes(const SplitBytes& bytes, std::string_view text, CutterWorkspace* work,
                std::vector<std::string_view>* words) const {
    if (bytes.add_prefix_space && !text.starts_with(' ')) text = Keep(" " + std::string(text), work);
    const std::size_t before = words->size();
    if (bytes.use_regex) {
      CutScanned(Scanner::kGpt2, text, work, words);
    } else {
      words->push_back(text);
    }
    if (keeps_bytes) return;
    for (std::size_t i = before; i < words->size(); ++i) {
      std::string shown;
      for (const char c : (*words)[i]) AppendByteCharacter(static_cast<unsigned char>(c), &shown);
      (*words)[i] = Keep(std::move(shown), work);
    }
  }

  static void CutMetaspace(const Metaspace& metaspace, std::string_view text, bool is_first,
                           CutterWorkspace* work, std::vector<std::string_view>* words) {
    std::string replaced;
    const bool prepends =
        metaspace.scheme == PrependScheme::kAlways || (metaspace.scheme == PrependScheme::kFirst && is_first);
    if (prepends && !text.starts_with(' ') && !text.starts_with(metaspace.replacement))
      replaced = metaspace.replacement;
    for (const char c : text) c == ' ' ? void(replaced += metaspace.replacement) : replaced.push_back(c);
    text = Keep(std::move(replaced), work);
    if (!metaspace.split) return words->push_back(text);
    for (std::size_t begin = 0; begin < text.size();) {  // before each replacement
      const std::size_t end = std::min(text.find(metaspace.replacement, begin + 1), text.size());
      words->push_back(text.substr(begin, end - begin));
      begin = end;
    }
  }

  absl::Status CutPattern(const Split& split, std::string_view text,
                          std::vector<std::string_view>* words) const {
    std::vector<Regex::Match> matches;
    RETURN_IF_ERROR(finder->FindAll(text, &matches));
    std::vector<Stretch> stretches;
    std::size_t last = 0;
    for (const Regex::Match match : matches) {
      if (match.begin > last) stretches.push_back({last, match.begin, split.invert});
      stretches.push_back({match.begin, match.end, !split.invert});
      last = match.end;
    }
    if (last < text.size()) stretches.push_back({last, text.size(), split.invert});
    AddStretches(text, std::move(stretches), split.behavior, words);
    return absl::OkStatus();
  }
};

WordCutter::WordCutter() = default;
WordCutter::WordCutter(WordCutter&&) noexcept = default;
WordCutter& WordCutter::operator=(WordCutter&&) noexcept = default;
WordCutter::~WordCutter() = default;

absl::StatusOr<WordCutter> WordCutter::Make(const std::vector<PreTokenizer>& pre_tokenizers, bool of_bytes) {
  WordCutter cutter;
  const auto isolated =
      [&](std::size_t i) -> const std::string* {  // the expression of a Split that a scanner may stand for
    const auto* split = i < pre_tokenizers.size() ? std::get_if<Split>(&pre_tokenizers[i]) : nullptr;
    const bool fits = split != nullptr && split->pattern.is_regex && split->behavior == Behavior::kIsolated &&
                      !split->invert;
    return fits ? &split->pattern.text : nullptr;
  };
  const std::span<const std::string_view> three = PatternsOf(Scanner::kDeepSeek);
  for (std::size_t i = 0; i < pre_tokenizers.size(); ++i) {
    auto step = std::make_unique<Step>();
    step->what = pre_tokenizers[i];
    const auto is_pattern = [&](std::size_t at, std::string_view pattern) {
      const std::string* const text = isolated(at);
      return text != nullptr && *text == pattern;
    };
    if (is_pattern(i, three[0]) && is_pattern(i + 1, three[1]) && is_pattern(i + 2, three[2])) {
      step->scanner = Scanner::kDeepSeek;
      i += 2;
    } else if (isolated(i) != nullptr) {
      step->scanner = ScannerOf(*isolated(i));
    }
    if (const auto* split = std::get_if<Split>(&step->what); split != nullptr && !step->scanner.has_value()) {
      ASSIGN_OR_RETURN(step->finder, Finder::Make(split->pattern));
    }
    if (const auto* bytes = std::get_if<SplitBytes>(&step->what)) {
      step->keeps_bytes = of_bytes && i + 1 == pre_tokenizers.size();
      if (step->keeps_bytes && !bytes->add_prefix_space && !bytes->use_regex)
        continue;  // nothing is left of it
      if (step->keeps_bytes && !bytes->add_prefix_space) step->scanner = Scanner::kGpt2;
    }
    cutter.steps_.push_back(std::move(step));
  }
  return cutter;
}

std::optional<Scanner> WordCutter::scanner() const {
  return steps_.size() == 1 ? steps_[0]->scanner : std::nullopt;
}

absl::Status WordCutter::Cut(std::string_view text, bool is_first, CutterWorkspace* work,
                             std::vector<std::string_view>* words) const {
  work->texts.clear();
  words->assign(1, text);
  for (const std::unique_ptr<Step>& step : steps_) {
    std::swap(work->from, *words);
    words->clear();
    bool first = is_first;
    for (const std::string_view word : work->from) {
      RETURN_IF_ERROR(step->Cut(word, first, work, words));
      first = false;
    }
  }
  return absl::OkStatus();
}

}  // namespace engine::tokenizer

#include "engine/data/tokenizer/decoder_chain.h"

#include <algorithm>
#include <optional>

#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/replace.h"

namespace engine::tokenizer {
namespace {

using Strings = std::vector<std::string>;

constexpr std::string_view kReplacement = "\uFFFD";

void ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  if (from.empty()) return;
  std::string out;
  std::size_t last = 0;
  for (std::size_t at = text->find(from); at != std::string::npos; at = text->find(from, last)) {
    out.append(*text, last, at - last);
    out += to;
    last = at + from.size();
  }
  out.append(*text, last);
  *text = std::move(out);
}

// The blanks that English text has not, as the reference library takes them away.
void Cleanup(std::string* text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) ReplaceAll(from, to, text);
}

std::optional<char> ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    byte = byte * 16 + digit;
  }
  return static_cast<char>(byte);
}

Strings JoinByteRuns(const Strings& tokens) {
  Strings out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (ValidUtf8Prefix(run) == run.size()) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(kReplacement));
    }
    run.clear();
  };
  for (const std::string& token : tokens) {
    if (const std::optional<char> byte = ByteOf(token)) {
      run += *byte;
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

std::string StripOf(const std::string& token, const StripCharacters& strip) {
  std::string_view text = token;
  for (std::int64_t i = 0; i < strip.start && text.starts_with(strip.content); ++i)
    text.remove_prefix(strip.content.size());
  for (std::int64_t i = 0; i < strip.stop && text.ends_with(strip.content); ++i)
    text.remove_suffix(strip.content.size());
  return std::string(text);
}

std::string BytesOfTokens(const Strings& tokens) {
  std::string text;
  std::string bytes;
  for (const std::string& token : tokens) text += BytesShownBy(token, &bytes) ? bytes : token;
  return text;
}

Strings JoinCtcTokens(const Strings& tokens, const JoinCtc& ctc) {
  Strings out;
  const std::string* last = nullptr;
  for (const std::string& token : tokens) {
    if (last != nullptr && *last == token) continue;
    last = &token;
    std::string text = token;
    ReplaceAll(ctc.pad, "", &text);
    if (ctc.cleanup) {
      Cleanup(&text);
      ReplaceAll(ctc.word_delimiter, " ", &text);
    }
    if (!text.empty()) out.push_back(std::move(text));
  }
  return out;
}

std::string Joined(const Strings& tokens, std::string_view between) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += between;
    text += tokens[i];
  }
  return text;
}

}  // namespace

struct DecoderChain::Step {
  Decoder what;
  std::optional<Replacer> replacer;

  absl::StatusOr<Strings> Apply(Strings tokens) const {
    if (std::holds_alternative<JoinBytes>(what)) return Strings{BytesOfTokens(tokens)};
    if (std::holds_alternative<JoinByteTokens>(what)) return JoinByteRuns(tokens);
    if (std::holds_alternative<Fuse>(what)) return Strings{Joined(tokens, "")};
    if (const auto* ctc = std::get_if<JoinCtc>(&what)) return JoinCtcTokens(tokens, *ctc);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (const auto* strip = std::get_if<StripCharacters>(&what)) {
        token = StripOf(token, *strip);
      } else if (const auto* metaspace = std::get_if<JoinMetaspace>(&what)) {
        ReplaceAll(metaspace->replacement, i == 0 && metaspace->drops_first ? "" : " ", &token);
      } else if (const auto* pieces = std::get_if<JoinWordPieces>(&what)) {
        if (i > 0) {
          const bool continues = !pieces->prefix.empty() && token.starts_with(pieces->prefix);
          if (continues) {
            token.erase(0, pieces->prefix.size());
          } else {
            token.insert(0, 1, ' ');
          }
        }
        if (pieces->cleanup) Cleanup(&token);
      } else if (const auto* suffixed = std::get_if<JoinSuffixed>(&what)) {
        ReplaceAll(suffixed->suffix, i + 1 == tokens.size() ? "" : " ", &token);
      } else if (replacer.has_value()) {
        std::string replaced;
        RETURN_IF_ERROR(replacer->Append(token, &replaced));
        token = std::move(replaced);
      }
    }
    return tokens;
  }
};

DecoderChain::DecoderChain() = default;
DecoderChain::DecoderChain(DecoderChain&&) noexcept = default;
DecoderChain& DecoderChain::operator=(DecoderChain&&) noexcept = default;
DecoderChain::~DecoderChain() = default;

absl::StatusOr<DecoderChain> DecoderChain::Make(const std::vector<Decoder>& decoders, bool has_decoder) {
  DecoderChain chain;
  chain.has_decoder_ = has_decoder;
  for (const Decoder& decoder : decoders) {
    auto step = std::make_unique<Step>();
    step->what = decoder;
    if (const auto* replace = std::get_if<Replace>(&decoder)) {
      ASSIGN_OR_RETURN(step->replacer, Replacer::Make(*replace));
    }
    chain.steps_.push_back(std::move(step));
  }
  return chain;
}

bool DecoderChain::is_of_bytes() const {
  return steps_.size() == 1 && std::holds_alternative<JoinBytes>(steps_[0]->what);
}

absl::StatusOr<std::string> DecoderChain::Decode(std::vector<std::string> tokens) const {
  for (const std::unique_ptr<Step>& step : steps_) {
    ASSIGN_OR_RETURN(tokens, step->Apply(std::move(tokens)));
  }
  return Joined(tokens, has_decoder_ ? "" : " ");
}

}  // namespace engine::tokenizer

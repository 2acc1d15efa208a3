#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/data/pretokenizer.h"

#include <pcre2.h>

#include <string>

#include "engine/base/status.h"
#include "engine/data/tokenizer/utf8.h"

namespace engine::data {

using namespace ::engine::tokenizer;  // NOLINT
namespace {

// Unicode's White_Space, spelled out: PCRE2's \s also takes U+180E, which lost that property in Unicode 6.3.
#define WHITE_SPACE \
  "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
constexpr std::string_view kPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE_SPACE "\\p{L}\\p{N}]+|[" WHITE_SPACE
    "]+(?![^" WHITE_SPACE "])|[" WHITE_SPACE "]+";
#undef WHITE_SPACE

std::string RegexError(int code) {
  unsigned char text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct Pretokenizer::Regex {
  pcre2_code* code = nullptr;
  ~Regex() { pcre2_code_free(code); }
};

Pretokenizer::Pretokenizer(std::unique_ptr<Regex> regex) : regex_(std::move(regex)) {}
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<Pretokenizer> Pretokenizer::Create() {
  auto regex = std::make_unique<Regex>();
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  // Anchored: each match starts where the last one ended, so no text can be skipped.
  regex->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &error_offset, nullptr);
  if (regex->code == nullptr) {
    return Internal("the pre-tokenisation pattern at {}: {}", error_offset, RegexError(error));
  }
  pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets: the same, slower
  return Pretokenizer(std::move(regex));
}

absl::Status Pretokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  while (!text.empty()) {
    const std::size_t valid = ValidUtf8Prefix(text);
    RETURN_IF_ERROR(SplitUtf8(text.substr(0, valid), pieces));
    text.remove_prefix(valid);
    std::size_t invalid = 0;
    char32_t code_point = 0;
    while (invalid < text.size() && DecodeUtf8(text.substr(invalid), &code_point) == 0) ++invalid;
    if (invalid > 0) pieces->push_back(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return absl::OkStatus();
}

absl::Status Pretokenizer::SplitUtf8(std::string_view text, std::vector<std::string_view>* pieces) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(regex_->code, nullptr));
  for (std::size_t at = 0; at < text.size();) {
    const int matched = pcre2_match(regex_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                    PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (matched < 0) return Internal("pre-tokenisation at byte {}: {}", at, RegexError(matched));
    const std::size_t end = pcre2_get_ovector_pointer(match.get())[1];
    ENGINE_CHECK(end > at, "an empty piece at byte {}", at);
    pieces->push_back(text.substr(at, end - at));
    at = end;
  }
  return absl::OkStatus();
}

}  // namespace engine::data

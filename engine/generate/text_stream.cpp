#include "engine/generate/text_stream.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/base/status.h"

namespace engine::generate {
namespace {

// Tokens of which the text of the next one may depend: more than a character has bytes, each of which may be a token.
constexpr std::size_t kLeastWindow = 6;
constexpr std::size_t kMostWindow = 32;

// Length of the character that begins with this byte of UTF-8; 0: none does.
std::size_t LengthByFirst(unsigned char byte) {
  if (byte < 0x80) return 1;
  if (byte >= 0xC2 && byte < 0xE0) return 2;
  if (byte >= 0xE0 && byte < 0xF0) return 3;
  if (byte >= 0xF0 && byte < 0xF5) return 4;
  return 0;
}

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Bytes at the end of `text` that are a proper beginning of `stop`.
std::size_t BeginningAtEnd(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::size_t WholeCharacters(std::string_view text) {
  // A decoder that joins bytes itself writes U+FFFD for a character that is not whole yet.
  std::string_view whole = text;
  while (whole.ends_with(data::kReplacementCharacter))
    whole.remove_suffix(data::kReplacementCharacter.size());
  if (whole.size() < text.size()) return whole.size();
  std::size_t tail = 0;
  while (tail < 3 && tail < text.size() && IsContinuation(text[text.size() - 1 - tail])) ++tail;
  if (tail == text.size()) return text.size();
  const auto first = static_cast<unsigned char>(text[text.size() - 1 - tail]);
  return LengthByFirst(first) > tail + 1 ? text.size() - 1 - tail : text.size();
}

absl::StatusOr<std::string> TextOfIds(const data::Tokenizer* tokenizer, std::span<const std::int32_t> ids) {
  if (tokenizer == nullptr) return fmt::format("{}", fmt::join(ids, " "));
  ASSIGN_OR_RETURN(std::string text, tokenizer->Decode(ids));
  text.resize(WholeCharacters(text));
  return text;
}

absl::StatusOr<TextStream> TextStream::Begin(const data::Tokenizer* tokenizer,
                                             std::span<const std::int32_t> before,
                                             std::vector<std::string> stops) {
  TextStream stream(tokenizer, std::move(stops));
  stream.is_first_ = before.empty();
  const std::span<const std::int32_t> last = before.last(std::min(before.size(), kMostWindow));
  stream.window_.assign(last.begin(), last.end());
  ASSIGN_OR_RETURN(const std::string text, TextOfIds(tokenizer, stream.window_));
  stream.taken_ = text.size();
  return stream;
}

absl::StatusOr<std::string> TextStream::Add(std::int32_t token) {
  if (has_stopped_) return std::string();
  ASSIGN_OR_RETURN(std::string text, TextOf(token));
  return UpToStop(std::move(text));
}

std::string TextStream::Finish() {
  if (has_stopped_) return "";
  std::string text = UpToStop(std::exchange(incomplete_, ""));
  return has_stopped_ ? text : text + std::exchange(held_, "");
}

absl::StatusOr<std::string> TextStream::TextOf(std::int32_t token) {
  if (tokenizer_ == nullptr) return fmt::format("{}{}", std::exchange(is_first_, false) ? "" : " ", token);
  window_.push_back(token);
  ASSIGN_OR_RETURN(const std::string text, tokenizer_->Decode(window_));
  const std::size_t whole = WholeCharacters(text);
  incomplete_ = text.substr(std::min(text.size(), std::max(whole, taken_)));
  if (whole < taken_) return std::string();
  std::string piece = text.substr(taken_, whole - taken_);
  taken_ = whole;
  if (window_.size() > kMostWindow && incomplete_.empty()) RETURN_IF_ERROR(Shorten());
  return piece;
}

absl::Status TextStream::Shorten() {
  const std::span<const std::int32_t> last = std::span(window_).last(kLeastWindow);
  ASSIGN_OR_RETURN(const std::string text, tokenizer_->Decode(last));
  // Bytes of a character whose first ones would be left out may spoil those that follow: then at a later token.
  if (text.starts_with(data::kReplacementCharacter) || (!text.empty() && IsContinuation(text[0])))
    return absl::OkStatus();
  window_.erase(window_.begin(), window_.end() - static_cast<std::ptrdiff_t>(kLeastWindow));
  taken_ = text.size();
  return absl::OkStatus();
}

std::string TextStream::UpToStop(std::string text) {
  text.insert(0, std::exchange(held_, ""));
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text.find(stop));
  if (end != std::string::npos) {
    has_stopped_ = true;
    text.resize(end);
    return text;
  }
  std::size_t kept = 0;
  for (const std::string& stop : stops_) kept = std::max(kept, BeginningAtEnd(text, stop));
  held_ = text.substr(text.size() - kept);
  text.resize(text.size() - kept);
  return text;
}

}  // namespace engine::generate

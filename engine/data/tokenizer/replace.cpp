#include "engine/data/tokenizer/replace.h"

#include "engine/base/status.h"

namespace engine::tokenizer {

absl::StatusOr<Finder> Finder::Make(const Pattern& pattern) {
  Finder finder;
  finder.text_ = pattern.text;
  if (pattern.is_regex) {
    ASSIGN_OR_RETURN(finder.regex_, Regex::Compile(pattern.text));
  }
  return finder;
}

absl::Status Finder::FindAll(std::string_view text, std::vector<Regex::Match>* matches) const {
  if (regex_.has_value()) return regex_->FindAll(text, matches);
  if (text_.empty()) return absl::OkStatus();
  for (std::size_t at = text.find(text_); at != std::string_view::npos;
       at = text.find(text_, at + text_.size())) {
    matches->push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + text_.size())});
  }
  return absl::OkStatus();
}

absl::StatusOr<Replacer> Replacer::Make(const Replace& replace) {
  ASSIGN_OR_RETURN(Finder finder, Finder::Make(replace.pattern));
  return Replacer(std::move(finder), replace.content);
}

absl::Status Replacer::Append(std::string_view text, std::string* out) const {
  if (finder_.is_character()) {
    for (const char c : text) c == finder_.character() ? void(*out += content_) : out->push_back(c);
    return absl::OkStatus();
  }
  std::vector<Regex::Match> matches;
  RETURN_IF_ERROR(finder_.FindAll(text, &matches));
  std::size_t last = 0;
  for (const Regex::Match match : matches) {
    out->append(text, last, match.begin - last);
    *out += content_;
    last = match.end;
  }
  out->append(text, last, text.size() - last);
  return absl::OkStatus();
}

}  // namespace engine::tokenizer

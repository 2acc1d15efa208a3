#include "engine/data/token_ids.h"

#include <algorithm>
#include <charconv>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::data {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

class IdReader {
 public:
  IdReader(const std::string& name, std::string_view text, std::int64_t vocab)
      : name_(name), text_(text), vocab_(vocab) {}

  absl::StatusOr<std::vector<std::int32_t>> Read() {
    std::vector<std::int32_t> ids;
    SkipBlanks();
    const bool list = Take('[');
    SkipBlanks();
    if (list && Take(']')) return End(std::move(ids));
    while (at_ < text_.size()) {
      RETURN_IF_ERROR(ReadId(&ids));
      SkipBlanks();
      if (!list) continue;
      if (Take(']')) return End(std::move(ids));
      if (at_ == text_.size()) break;
      if (!Take(',')) return Error("',' or ']' is missing");
      SkipBlanks();
    }
    if (list) return Error("the list has no end, ']'");
    return ids;
  }

 private:
  absl::Status ReadId(std::vector<std::int32_t>* ids) {
    const std::size_t end = std::min(text_.find_first_of(" \t\r\n\v\f,[]", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    std::int64_t id = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    const bool is_number =
        !word.empty() && stop == word.data() + word.size() && error != std::errc::invalid_argument;
    constexpr std::size_t kShown = 20;
    const std::string shown = Shown(text_.substr(at_, std::max<std::size_t>(word.size(), 1)), kShown);
    if (!is_number) return Error(fmt::format("'{}' is no token id", shown));
    if (error == std::errc::result_out_of_range || id < 0 || id >= vocab_) {
      return Error(fmt::format("id {} is outside of the model's vocabulary, 0 to {}", shown, vocab_ - 1));
    }
    ids->push_back(static_cast<std::int32_t>(id));
    at_ = end;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::int32_t>> End(std::vector<std::int32_t> ids) {
    SkipBlanks();
    if (at_ < text_.size()) return Error("something follows the list");
    return ids;
  }

  void SkipBlanks() { at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size()); }

  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  absl::Status Error(const std::string& what) const {
    const auto [line, column] = LineAndColumn(text_, at_);
    return InvalidArgument("{}:{}:{}: error: {}", name_, line, column, what);
  }

  const std::string& name_;
  std::string_view text_;
  std::int64_t vocab_;
  std::size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::int32_t>> ParseTokenIds(const std::string& name, std::string_view text,
                                                        std::int64_t vocab) {
  return IdReader(name, text, vocab).Read();
}

}  // namespace engine::data

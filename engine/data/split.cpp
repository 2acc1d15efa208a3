#include "engine/data/split.h"

#include <charconv>
#include <cmath>
#include <string>

#include "engine/base/status.h"

namespace engine::data {
namespace {

bool IsNumberCharacter(char c) { return c == '.' || (c >= '0' && c <= '9'); }
bool IsSeparator(char c) { return c == ',' || c == '/' || c == ' ' || c == '\t'; }

}  // namespace

std::string_view Name(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "validation";
    case Split::kTest:
      return "test";
  }
  return "?";
}

absl::StatusOr<std::array<double, 4>> ParseSplit(std::string_view text) {
  constexpr std::string_view kWayOut = "write up to three shares, for example \"969,30,1\"";
  std::array<double, 3> shares = {0.0, 0.0, 0.0};
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (IsSeparator(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && IsNumberCharacter(text[end])) ++end;
    if (end == at) return InvalidArgument("split \"{}\" has a '{}' in it: {}", text, text[at], kWayOut);
    if (count == shares.size()) {
      return InvalidArgument("split \"{}\" has more than three shares: {}", text, kWayOut);
    }
    const std::string_view word = text.substr(at, end - at);
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), shares[count]);
    if (error != std::errc() || rest != word.data() + word.size()) {
      return InvalidArgument("split \"{}\": \"{}\" is not a number: {}", text, word, kWayOut);
    }
    ++count;
    at = end;
  }
  const double total = shares[0] + shares[1] + shares[2];
  if (!(total > 0.0) || !std::isfinite(total)) {
    return InvalidArgument("split \"{}\" sums to {}, and must sum to more than 0: {}", text, total, kWayOut);
  }
  std::array<double, 4> book_ends = {0.0, 0.0, 0.0, 0.0};
  for (std::size_t i = 0; i < shares.size(); ++i) book_ends[i + 1] = book_ends[i] + shares[i] / total;
  return book_ends;
}

std::array<SequenceRange, 3> SplitRanges(const std::array<double, 4>& book_ends, std::int64_t sequences) {
  std::array<SequenceRange, 3> ranges;
  const auto rounded = [&](double fraction) {
    return static_cast<std::int64_t>(std::nearbyint(fraction * static_cast<double>(sequences)));
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (book_ends[i + 1] > book_ends[i]) ranges[i] = {rounded(book_ends[i]), rounded(book_ends[i + 1])};
  }
  return ranges;
}

}  // namespace engine::data

#include "engine/recipe/split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>

#include "engine/base/status.h"
#include "engine/recipe/source.h"

namespace engine::recipe {
namespace {

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

absl::StatusOr<double> ParseShare(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || rest != end || !std::isfinite(value) || value < 0) {
    return InvalidArgument("'{}' is no share", Shown(text));
  }
  return value;
}

}  // namespace

absl::StatusOr<std::array<double, 3>> ParseSplit(std::string_view text) {
  std::array<double, 3> shares = {0, 0, 0};
  double sum = 0;
  for (std::size_t i = 0, begin = 0; begin <= text.size(); ++i) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (i == shares.size()) return InvalidArgument("there are more than 3 shares");
    ASSIGN_OR_RETURN(shares[i], ParseShare(Trimmed(text.substr(begin, end - begin))));
    sum += shares[i];
    begin = end + 1;
  }
  if (sum == 0 || !std::isfinite(sum)) return InvalidArgument("the shares add up to {}", sum);
  return shares;
}

}  // namespace engine::recipe

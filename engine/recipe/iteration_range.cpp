#include "engine/recipe/iteration_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace engine::recipe {
namespace {

std::optional<std::int64_t> ParseIteration(std::string_view text) {
  std::int64_t iteration = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  if (error != std::errc() || end != text.data() + text.size() || iteration < 1) return std::nullopt;
  return iteration;
}

}  // namespace

std::optional<IterationRange> ParseIterationRange(std::string_view text) {
  const std::size_t hyphen = text.find('-');
  const std::optional<std::int64_t> first = ParseIteration(text.substr(0, hyphen));
  const std::optional<std::int64_t> last =
      hyphen == std::string_view::npos ? first : ParseIteration(text.substr(hyphen + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return IterationRange{*first, *last};
}

std::string ToText(const IterationRange& range) {
  if (range.first == range.last) return fmt::format("iteration {}", range.first);
  return fmt::format("iterations {} to {}", range.first, range.last);
}

bool AnyHas(const std::vector<IterationRange>& ranges, std::int64_t iteration) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const IterationRange& range) { return range.Has(iteration); });
}

}  // namespace engine::recipe

// Iterations from one to another, as guard.skip_iterations names them and as checkpoints keep those that were left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace engine::recipe {

struct IterationRange {
  std::int64_t first = 1;  // iterations are counted from 1
  std::int64_t last = 1;   // that one too

  std::int64_t count() const { return last - first + 1; }
  bool Has(std::int64_t iteration) const { return first <= iteration && iteration <= last; }
  bool operator==(const IterationRange&) const = default;
};

// "350" or "101-120"; nullopt where the text is neither, or ends before it begins.
std::optional<IterationRange> ParseIterationRange(std::string_view text);

// "iteration 350", "iterations 101 to 120".
std::string ToText(const IterationRange& range);

// Whether one of them has it.
bool AnyHas(const std::vector<IterationRange>& ranges, std::int64_t iteration);

}  // namespace engine::recipe

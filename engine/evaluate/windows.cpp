#include "engine/evaluate/windows.h"

#include <algorithm>

namespace engine::evaluate {

std::vector<Row> RollingWindows(std::span<const std::int32_t> tokens, std::int32_t prefix,
                                std::int64_t window) {
  const auto width = static_cast<std::size_t>(window);
  std::vector<Row> rows;
  for (std::size_t begin = 0; begin < tokens.size();) {
    const std::size_t end = std::min(tokens.size(), begin + width);
    Row row;
    if (begin == 0) {
      row.tokens.push_back(prefix);
      row.tokens.insert(row.tokens.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
    } else {
      const auto read = tokens.subspan(end - width - 1, width + 1);
      row.tokens.assign(read.begin(), read.end());
    }
    row.first = row.tokens.size() - (end - begin);
    rows.push_back(std::move(row));
    begin = end;
  }
  return rows;
}

std::vector<Row> StridedWindows(std::span<const std::int32_t> tokens, std::int64_t window,
                                std::int64_t stride) {
  const auto width = static_cast<std::size_t>(window);
  const auto step = static_cast<std::size_t>(stride);
  std::vector<Row> rows;
  std::size_t predicted = 1;  // tokens before it have been, and the first one never is
  for (std::size_t begin = 0; predicted < tokens.size(); begin += step) {
    const std::size_t end = std::min(tokens.size(), begin + width + 1);
    const auto read = tokens.subspan(begin, end - begin);
    rows.push_back({.tokens = {read.begin(), read.end()}, .first = predicted - begin});
    predicted = end;
  }
  return rows;
}

}  // namespace engine::evaluate

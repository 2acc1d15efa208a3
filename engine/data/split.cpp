#include "engine/data/split.h"

#include <cmath>

namespace engine::data {
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

std::array<double, 4> SplitBookEnds(const std::array<double, 3>& shares) {
  const double total = shares[0] + shares[1] + shares[2];
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

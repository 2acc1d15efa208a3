#include "engine/view/glyphs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace engine::view {
namespace {

constexpr std::array kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array kAsciiLevels = {"_", ".", ",", "-", "=", "+", "*", "#"};
constexpr double kWarmUp = 0.05;  // share of the iterations whose larger values may lie above a plot

using Means = std::vector<std::optional<double>>;

// By columns of equal length over the iterations that the buckets reach.
Means MeansOf(const std::vector<Bucket>& buckets, const metrics::Quantity& quantity, std::size_t columns) {
  if (buckets.empty() || columns == 0) return {};
  const auto first = static_cast<double>(buckets.front().first_iteration);
  const double length = static_cast<double>(buckets.back().last_iteration) - first + 1;
  columns = std::min(columns, static_cast<std::size_t>(std::max(length, 1.0)));
  std::vector<Range> ranges(columns);
  for (const Bucket& bucket : buckets) {
    const double middle = static_cast<double>(bucket.first_iteration + bucket.last_iteration) / 2;
    const double column = (middle - first) / length * static_cast<double>(columns);
    ranges[std::min(static_cast<std::size_t>(column), columns - 1)].Merge(bucket[quantity]);
  }
  Means means;
  for (const Range& range : ranges)
    means.push_back(range.empty() ? std::nullopt : std::optional(range.mean()));
  return means;
}

Range RangeOf(const Means& means) {
  Range range;
  for (const std::optional<double>& mean : means) {
    if (mean) range.Add(*mean);
  }
  return range;
}

// 0 to levels − 1; in the middle where nothing but rounding tells the values apart.
std::size_t LevelOf(double value, double low, double high, std::size_t levels) {
  constexpr double kRounding = 1e-6;
  const bool flat = high - low <= kRounding * std::max(std::abs(low), std::abs(high));
  const double share = !flat ? std::clamp((value - low) / (high - low), 0.0, 1.0) : 0.5;
  return static_cast<std::size_t>(std::lround(share * static_cast<double>(levels - 1)));
}

std::string Levels(const Means& means, double low, double high, bool ascii) {
  const auto& characters = ascii ? kAsciiLevels : kBlocks;
  std::string text;
  for (const std::optional<double>& mean : means)
    text += mean ? characters[LevelOf(*mean, low, high, characters.size())] : " ";
  return text;
}

// Dots of a rectangle, by row from the top.
class Canvas {
 public:
  Canvas(std::size_t columns, std::size_t rows) : columns_(columns), rows_(rows), dots_(columns * rows) {}

  // A vertical stroke between two heights, counted from the bottom.
  void Stroke(std::size_t column, std::size_t from, std::size_t to) {
    for (std::size_t y = std::min(from, to); y <= std::max(from, to); ++y)
      dots_[(rows_ - 1 - y) * columns_ + column] = true;
  }
  bool Dot(std::size_t column, std::size_t row) const {
    return column < columns_ && row < rows_ && dots_[row * columns_ + column];
  }

 private:
  std::size_t columns_, rows_;
  std::vector<bool> dots_;
};

// Unicode's Braille patterns: dots 1 to 8 are the bits from 0x2800 on.
std::string Braille(const Canvas& canvas, std::size_t column, std::size_t row) {
  constexpr unsigned kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  unsigned code = 0x2800;
  for (std::size_t y = 0; y < 4; ++y) {
    for (std::size_t x = 0; x < 2; ++x) code |= canvas.Dot(2 * column + x, 4 * row + y) ? kBits[y][x] : 0;
  }
  if (code == 0x2800) return " ";
  return {static_cast<char>(0xE0U | code >> 12), static_cast<char>(0x80U | (code >> 6 & 0x3FU)),
          static_cast<char>(0x80U | (code & 0x3FU))};
}

// The largest mean from the end of the warm-up on.
double TopOf(const Means& means) {
  const auto early = static_cast<std::ptrdiff_t>(kWarmUp * static_cast<double>(means.size()));
  const Range late = RangeOf({means.begin() + early, means.end()});
  return late.empty() ? RangeOf(means).max : late.max;
}

}  // namespace

std::string Sparkline(const std::vector<Bucket>& buckets, const metrics::Quantity& quantity,
                      std::size_t columns, bool ascii) {
  const Means means = MeansOf(buckets, quantity, columns);
  const Range range = RangeOf(means);
  return range.empty() ? "" : Levels(means, range.min, range.max, ascii);
}

std::string Bars(const std::vector<double>& numbers, std::size_t columns, bool ascii) {
  columns = std::min(columns, numbers.size());
  std::vector<Range> groups(columns);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (std::isfinite(numbers[i])) groups[i * columns / numbers.size()].Add(numbers[i]);
  }
  Means largest;
  for (const Range& group : groups)
    largest.push_back(group.empty() ? std::nullopt : std::optional(group.max));
  return Levels(largest, 0, RangeOf(largest).max, ascii);
}

Plot PlotOf(const std::vector<Bucket>& buckets, const metrics::Quantity& quantity, std::size_t columns,
            std::size_t rows, bool ascii) {
  const std::size_t across = ascii ? 1 : 2, down = ascii ? 1 : 4;
  const Means means = MeansOf(buckets, quantity, columns * across);
  const Range range = RangeOf(means);
  Plot plot;
  if (range.empty() || rows == 0) return plot;
  plot.bottom = range.min;
  plot.top = TopOf(means);
  plot.first = buckets.front().first_iteration;
  plot.last = buckets.back().last_iteration;
  const std::size_t width = columns * across, height = rows * down;
  Canvas canvas(width, height);
  std::optional<std::size_t> before;
  for (std::size_t x = 0; x < width; ++x) {  // few iterations are drawn as wide steps
    const std::optional<double>& mean = means[x * means.size() / width];
    if (!mean) continue;
    const std::size_t y = LevelOf(*mean, plot.bottom, plot.top, height);
    canvas.Stroke(x, before.value_or(y), y);
    before = y;
  }
  for (std::size_t row = 0; row < rows; ++row) {
    std::string& text = plot.rows.emplace_back();
    for (std::size_t column = 0; column < columns; ++column)
      text += ascii ? (canvas.Dot(column, row) ? "*" : " ") : Braille(canvas, column, row);
  }
  return plot;
}

std::string ProgressBar(double share, std::size_t columns, bool ascii) {
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(columns));
  std::string bar;
  for (std::size_t i = 0; i < columns; ++i) bar += i < filled ? (ascii ? "#" : "█") : (ascii ? "." : "░");
  return bar;
}

}  // namespace engine::view

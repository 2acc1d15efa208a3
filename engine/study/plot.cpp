#include "engine/study/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/units.h"

namespace engine::study {
namespace {

// Small enough that letters of 13 units are read on a phone's width.
constexpr double kWidth = 480, kHeight = 320;
constexpr double kLeft = 46, kRight = 470, kTop = 12, kBottom = 272;

struct Bounds {
  double x0 = std::numeric_limits<double>::infinity(), x1 = -x0, y0 = x0, y1 = -x0;

  void Include(const PlotPoint& point) {
    x0 = std::min(x0, point.x);
    x1 = std::max(x1, point.x);
    y0 = std::min(y0, std::min(point.y, point.low));
    y1 = std::max(y1, std::max(point.y, point.high));
  }
  // Values that nothing but rounding tells apart get an axis that ticks fit on.
  void Widen() {
    constexpr double kRounding = 1e-9;
    if (x1 - x0 <= kRounding * std::max(std::abs(x0), std::abs(x1))) x1 = x0 + std::max(1.0, std::abs(x0));
    if (y1 - y0 <= kRounding * std::max(std::abs(y0), std::abs(y1))) {
      const double middle = (y0 + y1) / 2;
      const double half = middle == 0 ? 1 : std::abs(middle) / 10;
      y0 = middle - half;
      y1 = middle + half;
    }
  }
  double X(double x) const { return kLeft + (kRight - kLeft) * (x - x0) / (x1 - x0); }
  double Y(double y) const { return kBottom - (kBottom - kTop) * (y - y0) / (y1 - y0); }
};

std::string Pair(const Bounds& bounds, double x, double y) {
  return fmt::format("{:.1f},{:.1f}", bounds.X(x), bounds.Y(y));
}

std::string LineSvg(const PlotLine& line, const Bounds& bounds, std::size_t index) {
  std::string path, band;
  for (const PlotPoint& point : line.points) {
    path += (path.empty() ? "" : " ") + Pair(bounds, point.x, point.y);
    band += Pair(bounds, point.x, point.high) + " ";
  }
  for (auto point = line.points.rbegin(); point != line.points.rend(); ++point) {
    band += Pair(bounds, point->x, point->low) + " ";
  }
  const std::string colour =
      fmt::format("c{}{}", index % kPlotColours, index >= kPlotColours ? " dashed" : "");
  std::string text = fmt::format("<g class=\"{}\"><title>{}</title>", colour, EscapeHtml(line.name));
  text += fmt::format("<polygon class=\"band\" points=\"{}\"/><polyline points=\"{}\"/>", band, path);
  for (const PlotPoint& mark : line.marks) {
    text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", bounds.X(mark.x), bounds.Y(mark.y));
  }
  return text + "</g>\n";
}

std::string AxesSvg(const Plot& plot, const Bounds& bounds) {
  std::string text;
  for (const double y : Ticks(bounds.y0, bounds.y1, 6)) {
    text += fmt::format(
        "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:g}</text>",
        kLeft, bounds.Y(y), kRight, kLeft - 5, bounds.Y(y) + 4, y);
  }
  for (const double x : Ticks(bounds.x0, bounds.x1, 5)) {
    const std::string label = x >= 1e4 ? fmt::format("{:g}K", x / 1e3) : fmt::format("{:g}", x);
    const std::string large = x >= 1e6 ? fmt::format("{:g}M", x / 1e6) : label;
    text += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {}V{}\"/><text x=\"{:.1f}\" y=\"{}\" "
        "text-anchor=\"middle\">{}</text>",
        bounds.X(x), kTop, kBottom, bounds.X(x), kBottom + 18,
        x >= 1e9 ? fmt::format("{:g}G", x / 1e9) : large);
  }
  text += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", (kLeft + kRight) / 2,
                      kHeight - 8, EscapeHtml(plot.x_label));
  return text +
         fmt::format("<text transform=\"translate(12 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + kBottom) / 2, EscapeHtml(plot.y_label));
}

}  // namespace

std::string SvgOf(const Plot& plot) {
  Bounds bounds;
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) bounds.Include(point);
    for (const PlotPoint& mark : line.marks) bounds.Include({mark.x, mark.y, mark.y, mark.y});
  }
  if (!(bounds.x1 >= bounds.x0)) return "";
  if (plot.top > bounds.y0) bounds.y1 = std::min(bounds.y1, plot.top);
  bounds.Widen();
  const double margin = 0.03 * (bounds.y1 - bounds.y0);
  bounds.y0 -= margin;
  bounds.y1 += margin;
  std::string text = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{}-title {}-desc\">\n<title "
      "id=\"{}-title\">{}</title>"
      "<desc id=\"{}-desc\">{}</desc>\n",
      kWidth, kHeight, plot.id, plot.id, plot.id, EscapeHtml(plot.title), plot.id,
      EscapeHtml(plot.description));
  text += fmt::format(
      "<clipPath id=\"{}-clip\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n", plot.id,
      kLeft, kTop - 5, kRight - kLeft + 5, kBottom - kTop + 10);
  text += AxesSvg(plot, bounds);
  text += fmt::format("<g clip-path=\"url(#{}-clip)\">\n", plot.id);
  for (std::size_t i = 0; i < plot.lines.size(); ++i) text += LineSvg(plot.lines[i], bounds, i);
  return text + "</g></svg>\n";
}

std::vector<double> Ticks(double low, double high, int count) {
  constexpr double kSlack = 1e-9;  // 5.000000000000001 is 5
  std::vector<double> ticks;
  const double rough = (high - low) / count;
  // Steps that the numbers' own rounding hides would not end.
  constexpr double kFinest = 1e-12;
  if (!(rough > kFinest * std::max(std::abs(low), std::abs(high))) || !std::isfinite(rough)) return ticks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double ratio = rough / power - kSlack;
  const double step = power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
  // Multiples by their number: a sum of steps would drift.
  for (double i = std::ceil(low / step - kSlack) + 0.0; i <= high / step + kSlack; ++i) {
    ticks.push_back(std::round(i * step / power * 10) * power / 10);
  }
  return ticks;
}

std::string EscapeHtml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace engine::study

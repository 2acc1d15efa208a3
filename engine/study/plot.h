// A plot of lines as SVG, to stand in a page: colours come from the page's CSS (classes c0 to c7), text
// alternatives are inside.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace engine::study {

inline constexpr std::size_t kPlotColours = 8;

struct PlotPoint {
  double x = 0;
  double y = 0;
  double low = 0, high = 0;  // the band around it
};

struct PlotLine {
  std::string name;
  std::vector<PlotPoint> points;  // by x
  std::vector<PlotPoint> marks;   // drawn as dots, without a band
};

struct Plot {
  std::string id;  // unique in the page
  std::string title, description;
  std::string x_label, y_label;
  std::vector<PlotLine> lines;  // the n-th has colour n mod 8; from the ninth on they are dashed
  double top = 0;               // largest y shown; 0: all
};

// Empty where no line has a point.
std::string SvgOf(const Plot& plot);

// Numbers for an axis from `low` to `high`: 1, 2 or 5 times a power of ten apart, about `count` of them.
std::vector<double> Ticks(double low, double high, int count);

std::string EscapeHtml(const std::string& text);

}  // namespace engine::study

// Curves out of characters.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/view/history.h"

namespace engine::view {

// The mean of a quantity in each of `columns` equal stretches of iterations, a character a stretch: its height between the
// smallest and the largest; a space where there is no value.
std::string Sparkline(const std::vector<Bucket>& buckets, const metrics::Quantity& quantity,
                      std::size_t columns, bool ascii);
// The same of a list of numbers, each a column; of more than `columns` the largest of each of that many equal groups. From 0
// up, so that columns compare as the numbers do.
std::string Bars(const std::vector<double>& numbers, std::size_t columns, bool ascii);

// A quantity's means over iterations: Braille characters of two by four dots, or stars. Early values may lie above, where
// they would squeeze the rest.
struct Plot {
  std::vector<std::string> rows;     // from the top, each as wide as asked for
  double bottom = 0, top = 0;        // values at the middle of the lowest and the highest dot
  std::int64_t first = 0, last = 0;  // iterations at the left and the right
};
// No rows where there is no value.
Plot PlotOf(const std::vector<Bucket>& buckets, const metrics::Quantity& quantity, std::size_t columns,
            std::size_t rows, bool ascii);

std::string ProgressBar(double share, std::size_t columns, bool ascii);

}  // namespace engine::view

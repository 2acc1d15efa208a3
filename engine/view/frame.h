// What `engine watch` shows: one run, or several as a table.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/view/lines.h"
#include "engine/view/run_view.h"

namespace engine::view {

struct FrameOptions {
  std::size_t columns = 80;
  std::size_t rows = 0;   // of the terminal; 0: as many as there are lines
  double now_unix_s = 0;  // what "ago" and "left" are counted from
  bool ascii = false;
};

// One run: state, curves, pace, memory, checkpoints, goodput.
std::vector<Line> RunFrame(const RunView& view, const FrameOptions& options);

// A line for each run, columns that do not fit left out, and below what is wrong with them.
std::vector<Line> TableFrame(const std::vector<const RunView*>& views, const FrameOptions& options);

}  // namespace engine::view

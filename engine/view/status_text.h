// What both forms of the live view say of a run's state.
#pragma once

#include <string>
#include <vector>

#include "engine/view/lines.h"
#include "engine/view/run_view.h"

namespace engine::view {

// "running", "silent for 3 min 20 s"
Span StateSpan(const RunView& view, double now_unix_s);

// What is wrong with the run or its files, a line each: why it failed, what could not be read.
std::vector<Line> Warnings(const RunView& view);

// What the runs are called where several are shown: their names; of those that share one, their folders, without the
// first ones where these are the same. Printable.
std::vector<std::string> NamesOf(const std::vector<const RunView*>& views);

// The newest checkpoint that is whole; nullopt where there is none.
std::optional<CheckpointView> NewestCheckpoint(const RunView& view);

}  // namespace engine::view

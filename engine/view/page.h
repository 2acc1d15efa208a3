// Runs as one HTML page that needs nothing else (no network, no script, no other file), or as Markdown.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/view/document.h"
#include "engine/view/run_view.h"

namespace engine::view {

struct ReportedRun {
  const RunView* view = nullptr;
  std::string name;         // unlike those of the other runs of the page
  std::string recipe_text;  // TOML with the origin of each value; empty: not known
  std::map<std::int64_t, std::int64_t> checkpoint_bytes;  // of those that are kept, by iteration
};

// Of a run that has been read. Looks up what the live view does not need.
std::vector<ReportedRun> ReportedRuns(const std::vector<const RunView*>& views);

// All there is to say of the runs. In the page numbers stand in cells with data-run="NAME" and data-number="loss", …
Document ReportOf(const std::vector<ReportedRun>& runs, double now_unix_s);

}  // namespace engine::view

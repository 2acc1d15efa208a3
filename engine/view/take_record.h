// One line of metrics.jsonl (docs/metrics.md) added to what is known of a run.
#pragma once

#include <simdjson.h>

#include <string_view>

#include "engine/view/run_view.h"

namespace engine::view {

// Whether the line is a record; of one without anything that is known here nothing is taken.
bool TakeRecord(std::string_view line, simdjson::dom::parser* parser, RunView* view);

// Seconds since 1970 of "2026-11-23T18:30:05.250Z"; 0 where the text is no such time.
double UnixSecondsOf(std::string_view timestamp);

}  // namespace engine::view

// A study's results as one HTML page that needs nothing else: no network, no script, no other file.
#pragma once

#include <string>

#include "engine/study/results.h"

namespace engine::study {

// Numbers of runs stand in cells with data-run="VARIANT/seed-S" and data-number="metric", …; each is that of
// the run's metrics.jsonl, rounded to the digits shown.
std::string ReportPage(const StudyResults& results);

}  // namespace engine::study

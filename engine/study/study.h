// Runs a study: each variant with each seed as a process of this program, and a report of what came of them.
#pragma once

#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/recipe/study.h"
#include "engine/study/results.h"

namespace engine::study {

struct StudyOptions {
  std::string out;
  std::int64_t jobs = 1;  // processes at once
  std::string program = "/proc/self/exe";
  std::vector<std::string> run_arguments;  // of each `engine run`, besides the recipe and --out
};

enum class StudyEnd { kFinished, kFailed, kInterrupted };

// The variants must have been checked. Writes OUT/variants/NAME/{diff.md, seed-S/…} (study_results.h), and
// after each run OUT/results.json and OUT/report.html. Runs that finished before are not run again; those
// that were interrupted go on from their last checkpoint. A run that fails does not stop the others. SIGINT,
// SIGTERM and SIGHUP stop the runs under way, which save, and start no other. Error: the folder cannot be
// written, is in use, or holds runs of other recipes. Call from the main thread: the processes die with it.
absl::StatusOr<StudyEnd> RunStudy(const recipe::Study& study, const StudyOptions& options,
                                  const ProfileFunction& profile);

// Names of the folder's files.
inline constexpr const char* kReportName = "report.html";
inline constexpr const char* kResultsName = "results.json";

}  // namespace engine::study

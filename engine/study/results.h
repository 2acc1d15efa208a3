// What the runs of a study came to: read from their folders, and from the plans of their recipes.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/recipe/study.h"
#include "engine/study/comparison.h"
#include "engine/study/tasks.h"

namespace engine::study {

// A run's folder: OUT/variants/NAME/seed-S with recipe.toml (resolved), log.txt, run/ (as of `engine run`)
// and, when it has trained to its end, finished.json.
std::string StudyRunFolder(const std::string& out, const std::string& variant, std::int64_t seed);
// The variant's recipe with this seed.
recipe::Recipe WithSeed(const recipe::Recipe& recipe, std::int64_t seed);

// finished.json. It counts only for the recipe that it was written for.
struct FinishedRun {
  std::int64_t peak_memory_bytes = 0;  // of the process: the largest resident set
};
std::optional<FinishedRun> ReadFinished(const std::string& folder, const recipe::Recipe& recipe);
absl::Status WriteFinished(const std::string& folder, const recipe::Recipe& recipe, const FinishedRun& run);

// Whether metrics.jsonl has the recipe's last iteration.
bool TrainedToTheEnd(const std::string& folder, const recipe::Recipe& recipe);

struct CurvePoint {
  double tokens = 0;
  double seconds = 0;  // of training, without evaluations and checkpoints
  double loss = 0;
};

struct RunResult {
  std::int64_t seed = 0;
  bool finished = false;
  std::string last_line;          // of the log, where the run has not finished
  std::vector<CurvePoint> train;  // an iteration each
  std::vector<CurvePoint> validation;
  std::vector<TaskMeasure> tasks = {};  // of the last evaluation
  double metric = 0;                    // of a finished run
  double iteration_s = 0;               // median
  double tokens_per_s = 0;              // median
  std::int64_t peak_memory_bytes = 0;
};

// Mean and sample standard deviation; the latter 0 of a single number.
struct Statistics {
  std::size_t count = 0;
  double mean = 0;
  double deviation = 0;
};
Statistics StatisticsOf(const std::vector<double>& numbers);

struct VariantResult {
  std::string name;
  std::vector<SettingChange> settings;  // against the base
  std::int64_t parameters = 0;
  double flops_per_token = 0;
  std::int64_t arena_bytes = 0;            // of all ranks: what the executor allocates
  double predicted_iteration_s = 0;        // 0: unknown
  std::string plan;                        // its hash
  std::vector<RunResult> runs;             // by seed
  Statistics metric;                       // of the finished runs
  Statistics difference;                   // from the first variant, seed by seed
  std::vector<TaskStatistics> tasks = {};  // of the finished runs
};

struct StudyResults {
  std::string title, base;
  std::string metric;  // in words
  std::vector<VariantResult> variants;
  std::size_t finished = 0, runs = 0;
};

using ProfileFunction = std::function<plan::DeviceProfile(const recipe::Recipe&)>;

// What is known before any run: variants with their plans.
absl::StatusOr<StudyResults> PlanResults(const recipe::Study& study, const ProfileFunction& profile);

// With what the folder holds by now.
StudyResults ReadResults(StudyResults planned, const recipe::Study& study, const std::string& out);

// Without the curves.
nlohmann::ordered_json ToJson(const StudyResults& results);

}  // namespace engine::study

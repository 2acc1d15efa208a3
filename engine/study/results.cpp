#include "engine/study/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/version.h"
#include "engine/base/write_file.h"
#include "engine/driver/compile_recipe.h"
#include "engine/driver/run_folder.h"
#include "engine/predict/predict.h"
#include "engine/recipe/batch_size.h"
#include "engine/recipe/print.h"

namespace engine::study {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFinishedName = "finished.json";

double NumberIn(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : 0;
}

double Median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

// What is no regular file reads as empty: a run beside it says what is wrong with it.
std::ifstream OpenText(const fs::path& path) {
  return CheckRegularOrAbsent(path.string()).ok() ? std::ifstream(path) : std::ifstream();
}

std::string LastLine(const fs::path& path) {
  std::ifstream file = OpenText(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

// metrics.jsonl, line by line; what is no JSON object is passed over.
template <typename Function>
void ForEachMetric(const std::string& folder, const Function& function) {
  const fs::path path = fs::path(folder) / "run" / driver::kMetricsName;
  std::ifstream file = OpenText(path);
  for (std::string line; std::getline(file, line);) {
    const absl::StatusOr<Json> json = ParseJson(line, path.string());
    if (json.ok() && json->is_object()) function(*json);
  }
}

RunResult ReadRun(const std::string& folder, const recipe::Recipe& recipe, const recipe::Study& study) {
  RunResult run{.seed = recipe.training.seed, .last_line = {}, .train = {}, .validation = {}};
  const auto sequence = static_cast<double>(recipe.data.sequence_length);
  std::vector<double> iteration_s, tokens_per_s;
  double seconds = 0;
  std::int64_t evaluated = 0;
  ForEachMetric(folder, [&](const Json& json) {
    const auto iteration = static_cast<std::int64_t>(NumberIn(json, "iteration"));
    const double tokens =
        sequence * static_cast<double>(recipe::RunOn(recipe.training, {}, iteration, recipe::kNoEnd).samples);
    if (json.contains("validation_loss")) {
      run.validation.push_back({tokens, seconds, NumberIn(json, "validation_loss")});
      run.tasks = MeasuresIn(json);
      evaluated = iteration;
      return;
    }
    if (!json.contains("loss")) return;
    iteration_s.push_back(NumberIn(json, "elapsed_ms") / 1e3);
    tokens_per_s.push_back(NumberIn(json, "tokens_per_second"));
    seconds += iteration_s.back();
    run.train.push_back({tokens, seconds, NumberIn(json, "loss")});
  });
  AddDeviations((fs::path(folder) / "run").string(), evaluated, &run.tasks);
  run.iteration_s = Median(iteration_s);
  run.tokens_per_s = Median(tokens_per_s);
  const std::optional<FinishedRun> finished = ReadFinished(folder, recipe);
  if (!finished) {
    run.last_line = LastLine(fs::path(folder) / "log.txt");
    return run;
  }
  run.peak_memory_bytes = finished->peak_memory_bytes;
  if (study.metric == "validation_loss") {
    run.finished = !run.validation.empty();
    if (run.finished) run.metric = run.validation.back().loss;
    return run;
  }
  const auto wanted = static_cast<std::size_t>(study.metric_iterations);
  run.finished = run.train.size() >= wanted;
  if (!run.finished) return run;
  for (std::size_t i = run.train.size() - wanted; i < run.train.size(); ++i) run.metric += run.train[i].loss;
  run.metric /= static_cast<double>(wanted);
  return run;
}

absl::Status ReadPlan(const recipe::Study& study, const recipe::Variant& variant,
                      const ProfileFunction& profile, VariantResult* result) {
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   driver::CompileUnverified(variant.recipe, {.profile = profile(variant.recipe)}));
  result->plan = plan.hash;
  result->parameters = plan.parameter_count;
  double flops = 0;
  for (const plan::StagePlan& stage : plan.stages) {
    const std::int64_t ranks = plan.mesh.ranks_per_stage();
    result->arena_bytes += stage.arena_bytes * ranks;
    flops += stage.flops * static_cast<double>(ranks);
  }
  result->flops_per_token = flops / static_cast<double>(plan.global_batch * plan.sequence);
  const predict::Prediction prediction = predict::Predict(plan, variant.recipe.cluster);
  if (prediction.has_times()) result->predicted_iteration_s = prediction.iteration_s;
  for (const recipe::Change& change : recipe::Diff(study.base, variant.recipe)) {
    result->settings.push_back({change.key, change.before, change.after,
                                recipe::OriginOf(study.base, change.key),
                                recipe::OriginOf(variant.recipe, change.key)});
  }
  return absl::OkStatus();
}

void Summarize(const VariantResult& first, VariantResult* variant) {
  std::map<std::int64_t, double> of_first;
  std::map<std::int64_t, std::vector<TaskMeasure>> tasks_of_first;
  for (const RunResult& run : first.runs) {
    if (run.finished) of_first[run.seed] = run.metric;
    if (run.finished) tasks_of_first[run.seed] = run.tasks;
  }
  std::vector<double> metrics, differences;
  std::vector<std::vector<TaskMeasure>> tasks, firsts;
  for (const RunResult& run : variant->runs) {
    if (!run.finished) continue;
    metrics.push_back(run.metric);
    tasks.push_back(run.tasks);
    firsts.push_back(tasks_of_first[run.seed]);
    if (of_first.contains(run.seed)) differences.push_back(run.metric - of_first[run.seed]);
  }
  variant->metric = StatisticsOf(metrics);
  variant->difference = StatisticsOf(differences);
  variant->tasks = StatisticsOfTasks(firsts, tasks);
}

nlohmann::ordered_json ToJson(const Statistics& statistics) {
  return {{"count", statistics.count}, {"mean", statistics.mean}, {"deviation", statistics.deviation}};
}

}  // namespace

std::string StudyRunFolder(const std::string& out, const std::string& variant, std::int64_t seed) {
  return (fs::path(out) / "variants" / variant / fmt::format("seed-{}", seed)).string();
}

recipe::Recipe WithSeed(const recipe::Recipe& recipe, std::int64_t seed) {
  recipe::Recipe copy = recipe;
  copy.training.seed = seed;
  return copy;
}

std::optional<FinishedRun> ReadFinished(const std::string& folder, const recipe::Recipe& recipe) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  const std::string path = (fs::path(folder) / kFinishedName).string();
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostBytes);
  if (!text.ok()) return std::nullopt;
  const absl::StatusOr<Json> json = ParseJson(*text, path);
  if (!json.ok() || !json->is_object() || json->value("recipe", Json()) != recipe::HashOfValues(recipe)) {
    return std::nullopt;
  }
  return FinishedRun{static_cast<std::int64_t>(NumberIn(*json, "peak_memory_bytes"))};
}

absl::Status WriteFinished(const std::string& folder, const recipe::Recipe& recipe, const FinishedRun& run) {
  const nlohmann::ordered_json json = {{"recipe", recipe::HashOfValues(recipe)},
                                       {"engine", Version()},
                                       {"peak_memory_bytes", run.peak_memory_bytes}};
  return WriteFile(fs::path(folder) / kFinishedName, json.dump(1) + "\n");
}

bool TrainedToTheEnd(const std::string& folder, const recipe::Recipe& recipe) {
  double last = 0;
  ForEachMetric(folder, [&](const Json& json) { last = NumberIn(json, "iteration"); });
  return last == static_cast<double>(recipe.iterations());
}

Statistics StatisticsOf(const std::vector<double>& numbers) {
  Statistics statistics{.count = numbers.size()};
  if (numbers.empty()) return statistics;
  for (const double number : numbers) statistics.mean += number;
  statistics.mean /= static_cast<double>(numbers.size());
  if (numbers.size() == 1) return statistics;
  double squares = 0;
  for (const double number : numbers) squares += (number - statistics.mean) * (number - statistics.mean);
  statistics.deviation = std::sqrt(squares / static_cast<double>(numbers.size() - 1));
  return statistics;
}

absl::StatusOr<StudyResults> PlanResults(const recipe::Study& study, const ProfileFunction& profile) {
  StudyResults results{.title = study.title, .base = study.base.path, .metric = {}, .variants = {}};
  results.metric =
      study.metric == "validation_loss"
          ? "last validation loss"
          : fmt::format("training loss, mean of the last {} iterations", study.metric_iterations);
  for (const recipe::Variant& variant : study.variants) {
    VariantResult& result = results.variants.emplace_back();
    result.name = variant.name;
    RETURN_IF_ERROR(ReadPlan(study, variant, profile, &result));
  }
  return results;
}

StudyResults ReadResults(StudyResults planned, const recipe::Study& study, const std::string& out) {
  StudyResults results = std::move(planned);
  for (std::size_t v = 0; v < study.variants.size(); ++v) {
    const recipe::Variant& variant = study.variants[v];
    for (const std::int64_t seed : study.seeds) {
      std::vector<RunResult>& runs = results.variants[v].runs;
      runs.push_back(ReadRun(StudyRunFolder(out, variant.name, seed), WithSeed(variant.recipe, seed), study));
      results.finished += runs.back().finished ? 1 : 0;
      ++results.runs;
    }
  }
  for (VariantResult& result : results.variants) Summarize(results.variants[0], &result);
  return results;
}

nlohmann::ordered_json ToJson(const StudyResults& results) {
  nlohmann::ordered_json variants = nlohmann::ordered_json::array();
  for (const VariantResult& variant : results.variants) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const RunResult& run : variant.runs) {
      nlohmann::ordered_json& item = runs.emplace_back();
      item = {{"seed", run.seed}, {"finished", run.finished}};
      if (run.finished) {
        item["metric"] = run.metric;
        item["iteration_s"] = run.iteration_s;
        item["tokens_per_s"] = run.tokens_per_s;
        item["training_s"] = run.train.empty() ? 0 : run.train.back().seconds;
        item["peak_memory_bytes"] = run.peak_memory_bytes;
      }
    }
    nlohmann::ordered_json settings = nlohmann::ordered_json::array();
    for (const SettingChange& change : variant.settings) {
      settings.push_back({{"key", change.key}, {"base", change.a}, {"variant", change.b}});
    }
    nlohmann::ordered_json tasks = nlohmann::ordered_json::array();
    for (const TaskStatistics& task : variant.tasks) {
      nlohmann::ordered_json& item = tasks.emplace_back();
      item = {{"name", task.name}, {"mean", task.mean}, {"difference", task.difference}};
      if (task.margin) item["margin_95"] = *task.margin;
      if (task.difference_margin) item["difference_margin_95"] = *task.difference_margin;
    }
    const double predicted_s = variant.predicted_iteration_s;
    variants.push_back({{"name", variant.name},
                        {"plan", variant.plan},
                        {"settings", std::move(settings)},
                        {"parameters", variant.parameters},
                        {"flops_per_token", variant.flops_per_token},
                        {"arena_bytes", variant.arena_bytes},
                        {"predicted_iteration_s",
                         predicted_s > 0 ? nlohmann::ordered_json(predicted_s) : nlohmann::ordered_json()},
                        {"metric", ToJson(variant.metric)},
                        {"difference", ToJson(variant.difference)},
                        {"tasks", std::move(tasks)},
                        {"runs", std::move(runs)}});
  }
  return {{"title", results.title}, {"base", results.base},         {"metric", results.metric},
          {"runs", results.runs},   {"finished", results.finished}, {"variants", std::move(variants)}};
}

}  // namespace engine::study

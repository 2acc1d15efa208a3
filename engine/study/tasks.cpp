#include "engine/study/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/driver/run_folder.h"

namespace engine::study {
namespace {

using Json = nlohmann::json;

constexpr double kNormal = 1.959963984540054;  // the normal distribution's quantile of 0.975

// Student's t distribution's quantile of 0.975, by degrees of freedom from 1; further on the normal distribution's is near
// enough (Abramowitz and Stegun, table 26.10).
double StudentQuantile(std::size_t freedom) {
  static constexpr std::array kQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                            2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                            2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                            2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  return freedom <= kQuantiles.size() ? kQuantiles[freedom - 1] : kNormal;
}

const TaskMeasure* FindMeasure(const std::vector<TaskMeasure>& measures, const std::string& name) {
  const auto found =
      std::find_if(measures.begin(), measures.end(), [&](const TaskMeasure& m) { return m.name == name; });
  return found == measures.end() ? nullptr : &*found;
}

std::optional<double> MarginOf(const std::optional<double>& error) {
  return error ? std::optional(kNormal * *error) : std::nullopt;
}

bool HaveSameUnits(const TaskMeasure& a, const TaskMeasure& b) {
  return !a.units.empty() && a.units == b.units && a.deviations.size() > 1 &&
         a.deviations.size() == b.deviations.size();
}

std::optional<double> MarginOfDifference(const TaskMeasure& a, const TaskMeasure& b) {
  if (!a.standard_error || !b.standard_error) return std::nullopt;
  if (!HaveSameUnits(a, b)) return MarginOf(std::hypot(*a.standard_error, *b.standard_error));
  double squares = 0;
  for (std::size_t i = 0; i < a.deviations.size(); ++i) {
    const double difference = b.deviations[i] - a.deviations[i];
    squares += difference * difference;
  }
  const auto n = static_cast<double>(a.deviations.size());
  return MarginOf(std::sqrt(n / (n - 1) * squares));
}

double MeanOfAll(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum / static_cast<double>(numbers.size());
}

// Of the mean of two numbers or more.
double MarginOverSeeds(const std::vector<double>& numbers) {
  const double mean = MeanOfAll(numbers);
  double squares = 0;
  for (const double number : numbers) squares += (number - mean) * (number - mean);
  const auto n = static_cast<double>(numbers.size());
  return StudentQuantile(numbers.size() - 1) * std::sqrt(squares / (n - 1) / n);
}

std::int64_t IterationOf(const Json& record) {
  const auto found = record.find("iteration");
  return found != record.end() && found->is_number_integer() ? found->get<std::int64_t>() : -1;
}

}  // namespace

std::vector<TaskMeasure> MeasuresIn(const Json& record) {
  std::vector<TaskMeasure> measures;
  const auto values = record.find("tasks");
  if (values == record.end() || !values->is_object()) return measures;
  const Json errors = record.value("task_errors", Json::object());
  for (const auto& [name, value] : values->items()) {
    if (!value.is_number() && !value.is_null()) continue;
    const double number = value.is_null() ? std::numeric_limits<double>::infinity() : value.get<double>();
    TaskMeasure& measure = measures.emplace_back(TaskMeasure{.name = name, .value = number});
    const bool known = errors.is_object() && errors.contains(name) && errors[name].is_number();
    if (known) measure.standard_error = errors[name].get<double>();
  }
  return measures;
}

void AddDeviations(const std::string& run, std::int64_t iteration, std::vector<TaskMeasure>* measures) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  const std::string path = (std::filesystem::path(run) / driver::kDeviationsName).string();
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostBytes);
  if (!text.ok()) return;
  const absl::StatusOr<Json> file = ParseJson(*text, path);
  if (!file.ok() || !file->is_object() || IterationOf(*file) != iteration) return;
  const auto child = [](const Json& of, const std::string& key) {
    const auto found = of.is_object() ? of.find(key) : of.end();
    return of.is_object() && found != of.end() ? *found : Json();
  };
  for (TaskMeasure& measure : *measures) {
    const std::size_t slash = measure.name.rfind('/');
    if (slash == std::string::npos) continue;
    const Json task = child(child(*file, "tasks"), measure.name.substr(0, slash));
    const Json units = child(task, "units");
    const Json values = child(child(task, "measures"), measure.name.substr(slash + 1));
    const bool good = units.is_string() && values.is_array() &&
                      std::all_of(values.begin(), values.end(), [](const Json& v) { return v.is_number(); });
    if (!good) continue;
    measure.units = units.get<std::string>();
    measure.deviations = values.get<std::vector<double>>();
  }
}

std::vector<TaskMeasure> LastMeasures(const std::string& run) {
  const std::string path = (std::filesystem::path(run) / driver::kMetricsName).string();
  std::vector<TaskMeasure> last;
  std::int64_t iteration = 0;
  if (!CheckRegularOrAbsent(path).ok()) return last;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"validation_loss\"") == std::string::npos) continue;
    const absl::StatusOr<Json> json = ParseJson(line, path);
    if (!json.ok() || !json->is_object()) continue;
    last = MeasuresIn(*json);
    iteration = IterationOf(*json);
  }
  AddDeviations(run, iteration, &last);
  return last;
}

std::vector<TaskDifference> Differences(const std::vector<TaskMeasure>& a,
                                        const std::vector<TaskMeasure>& b) {
  std::vector<TaskDifference> differences;
  for (const TaskMeasure& of_b : b) {
    const TaskMeasure* of_a = FindMeasure(a, of_b.name);
    if (of_a == nullptr) continue;
    differences.push_back({.name = of_b.name,
                           .a = of_a->value,
                           .b = of_b.value,
                           .margin = MarginOfDifference(*of_a, of_b),
                           .paired = HaveSameUnits(*of_a, of_b)});
  }
  return differences;
}

std::vector<TaskStatistics> StatisticsOfTasks(const std::vector<std::vector<TaskMeasure>>& first,
                                              const std::vector<std::vector<TaskMeasure>>& runs) {
  std::vector<TaskStatistics> statistics;
  if (runs.empty()) return statistics;
  for (const TaskMeasure& measure : runs[0]) {
    std::vector<double> values, differences;
    const TaskMeasure* of_first = nullptr;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const TaskMeasure* here = FindMeasure(runs[r], measure.name);
      const TaskMeasure* there = FindMeasure(first[r], measure.name);
      if (here != nullptr) values.push_back(here->value);
      if (here == nullptr || there == nullptr) continue;
      differences.push_back(here->value - there->value);
      of_first = there;
    }
    TaskStatistics of{.name = measure.name, .mean = MeanOfAll(values)};
    of.margin = values.size() > 1 ? MarginOverSeeds(values) : MarginOf(measure.standard_error);
    if (!differences.empty()) {
      of.difference = MeanOfAll(differences);
      of.difference_margin =
          differences.size() > 1 ? MarginOverSeeds(differences) : MarginOfDifference(*of_first, measure);
    }
    statistics.push_back(std::move(of));
  }
  return statistics;
}

std::string WithMargin(double value, const std::optional<double>& margin) {
  if (!std::isfinite(value)) return "overflows";
  const bool known = margin && std::isfinite(*margin);
  return known ? fmt::format("{:.4g} ± {:.2g}", value, *margin) : fmt::format("{:.4g}", value);
}

}  // namespace engine::study

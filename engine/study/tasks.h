// What runs came to in the tasks of their evaluations (evaluation.tasks), read again from metrics.jsonl, and how far two runs,
// or variants, are apart.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace engine::study {

// A measure of a task, as a record of an evaluation has it under "tasks" and "task_errors".
struct TaskMeasure {
  std::string name;                           // "lambada/acc"
  double value = 0;                           // ∞ where it overflows, which a record has as null
  std::optional<double> standard_error = {};  // over the task's examples
  // How far each of its units moved it, and a hash of what they are (evaluate/results.h); empty where nothing is known.
  std::vector<double> deviations = {};
  std::string units = {};
};

// Of a record of metrics.jsonl; none where it is of no evaluation with tasks.
std::vector<TaskMeasure> MeasuresIn(const nlohmann::json& record);

// Gives measures of the evaluation after that iteration the deviations that are kept in the run's folder; whatever is wrong with
// that file, they are left without.
void AddDeviations(const std::string& run, std::int64_t iteration, std::vector<TaskMeasure>* measures);

// The measures of the last evaluation that RUN/metrics.jsonl tells of, with their deviations; none where there is no such file, or
// that evaluation asked no tasks.
std::vector<TaskMeasure> LastMeasures(const std::string& run);

struct TaskDifference {
  std::string name;
  double a = 0, b = 0;
  // b − a lies so far from its true value at most, with a confidence of 95 %. Where both were asked the same and their deviations are
  // known, of the differences example by example; else as if both had had examples of their own, which is more. nullopt: not known.
  std::optional<double> margin = {};
  bool paired = false;  // the former
};

// Of the measures that both have, in b's order.
std::vector<TaskDifference> Differences(const std::vector<TaskMeasure>& a, const std::vector<TaskMeasure>& b);

// A measure of a variant over its seeds, and how far it is from the first variant's.
struct TaskStatistics {
  std::string name;
  double mean = 0;
  double difference = 0;  // mean over seeds of both, seed by seed
  // Half the width of the intervals of 95 %: of several seeds by Student's t over them; of one seed by the errors of the
  // measures, as in TaskDifference. nullopt: not known.
  std::optional<double> margin = {}, difference_margin = {};
};

// `runs`, `first`: of each seed that both variants have finished, in the same order.
std::vector<TaskStatistics> StatisticsOfTasks(const std::vector<std::vector<TaskMeasure>>& first,
                                              const std::vector<std::vector<TaskMeasure>>& runs);

// "0.3258 ± 0.0127"; without a margin the number alone; "overflows" of what is no number.
std::string WithMargin(double value, const std::optional<double>& margin);

}  // namespace engine::study

// From the scores of a task's rows to the numbers that the task is known by.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/evaluate/examples.h"

namespace engine::evaluate {

// How well the tokens of a row that are to be predicted were predicted.
struct RowScore {
  double log_probability = 0;  // the sum of their natural logarithms
  std::int64_t predicted = 0;  // how many there are
  std::int64_t missed =
      0;  // of them, those that are not the likeliest token at their place (ops/cross_entropy.cpp)
  bool is_greedy() const { return missed == 0; }
};

struct Measure {
  std::string name;  // "acc"
  double value = 0;
  // Of one example nothing is known of how examples differ, and so none of these.
  std::optional<double> standard_error = {};
  std::optional<std::pair<double, double>> interval =
      {};  // in which the value lies with a confidence of 95 %
  // A number for each example, or for each row of the only text: how far it moves the value from what the others make it. Their sum is 0, and
  // standard_error is StandardError of them. Where two models had the same units, the differences of their deviations are those of the
  // measures' difference.
  std::vector<double> deviations = {};
};

// √(n / (n − 1) · Σ d²) of n deviations; nullopt of fewer than two.
std::optional<double> StandardError(std::span<const double> deviations);

struct TaskResult {
  std::string task;
  std::int64_t examples = 0;
  std::int64_t tokens = 0;     // that were predicted
  std::int64_t truncated = 0;  // Task::truncated
  std::string units = {};      // a hash of what the units of deviations are
  std::vector<Measure> measures = {};
};

// `scores`: of the task's rows, in their order. What is measured, by kind (docs/evaluation.md has the formulas):
//   perplexity       perplexity; of rolling windows word_perplexity, of strided ones adjusted_perplexity;
//                    byte_perplexity, bits_per_byte
//   last word        acc, perplexity
//   multiple choice  acc, acc_norm, acc_bytes
TaskResult Summarize(const Task& task, std::span<const RowScore> scores);

// The same in a line: " lambada (5153 examples) | acc: 0.3258 ± 0.0065 | perplexity: 40.06 ± 1.54 |", with standard errors.
std::string LineOf(const TaskResult& result);

// The same as JSON: {"task": …, "examples": …, "tokens": …, "truncated": …, "measures": {"acc": {"value": …,
// "standard_error": …, "interval": [low, high]}}}.
nlohmann::json ToJson(const TaskResult& result);

// A line of JSON for each example: its line in the task's file, the scores of its rows, and what the model chose.
std::string SamplesText(const Task& task, std::span<const RowScore> scores);

// The text of task_deviations.json in a run's folder: the deviations of the last evaluation's measures, with six digits, of tasks of up
// to 100,000 units; not of a measure that overflows. By them two runs that were asked the same are compared example by example.
//   {"iteration": 1000, "tasks": {"lambada": {"units": "<hash>", "measures": {"acc": [0.00013,…], …}}, …}}
std::string DeviationsText(std::int64_t iteration, std::span<const TaskResult> results);

}  // namespace engine::evaluate

#include "engine/evaluate/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <utility>

#include "engine/base/hash.h"
#include "engine/base/status.h"

namespace engine::evaluate {
namespace {

using Interval95 = std::pair<double, double>;

constexpr double kNormal95 = 1.959963984540054;  // the normal distribution's quantile of 0.975
// The largest exponent of which Megatron-LM's tasks take e^x (tasks/zeroshot_gpt/evaluate.py).
constexpr double kLargestExponent = 20;

struct Mean {
  double value = 0;
  std::vector<double> deviations = {};  // of units that are drawn (Measure)
};

Mean MeanOf(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Mean mean;
  for (const double value : values) mean.value += value;
  mean.value /= n;  // of ones it is one
  for (const double value : values) mean.deviations.push_back((value - mean.value) / n);
  return mean;
}

// The measure whose value is a function of the mean, with that derivative (`slope`) by it.
Measure MeasureOf(std::string name, double value, const Mean& mean, double slope = 1) {
  Measure measure{.name = std::move(name), .value = value, .deviations = mean.deviations};
  for (double& deviation : measure.deviations) deviation *= slope;
  measure.standard_error = StandardError(measure.deviations);
  return measure;
}

// Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which stays within 0 and 1 and has a width where all answers are right.
Interval95 WilsonInterval(double share, double n) {
  const double z2 = kNormal95 * kNormal95;
  const double middle = (share + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kNormal95 / (1 + z2 / n) * std::sqrt(share * (1 - share) / n + z2 / (4 * n * n));
  return {middle - half, middle + half};
}

Measure Share(std::string name, const std::vector<double>& hits) {
  const Mean mean = MeanOf(hits);
  Measure measure = MeasureOf(std::move(name), mean.value, mean);
  if (measure.standard_error) measure.interval = WilsonInterval(mean.value, static_cast<double>(hits.size()));
  return measure;
}

// e to the mean of exponents; its error by the derivative, its interval from that of the exponent.
Measure Exponential(std::string name, const Mean& exponent) {
  const double value = std::exp(exponent.value);
  Measure measure = MeasureOf(std::move(name), value, exponent, value);
  const std::optional<double> known = StandardError(exponent.deviations);
  if (!known) return measure;
  const double error = *known;
  measure.interval = {std::exp(exponent.value - kNormal95 * error),
                      std::exp(exponent.value + kNormal95 * error)};
  return measure;
}

// Σ costs / Σ weights, with the error of a ratio of sums over units that are drawn together: the residuals cost − ratio ·
// weight (Cochran, Sampling Techniques, section 6.3).
Mean RatioOf(const std::vector<double>& costs, const std::vector<double>& weights) {
  double cost = 0;
  double weight = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    cost += costs[i];
    weight += weights[i];
  }
  Mean ratio{.value = cost / weight};
  for (std::size_t i = 0; i < costs.size(); ++i)
    ratio.deviations.push_back((costs[i] - ratio.value * weights[i]) / weight);
  return ratio;
}

// Whether the units over which a measure's error is known are the rows of the only text.
bool GoesByRow(const Task& task) {
  return task.settings.kind == TaskKind::kPerplexity && task.examples.size() == 1;
}

std::string HashOfUnits(const Task& task) {
  if (!GoesByRow(task)) return task.contents;
  Hasher hasher;
  hasher.Update(task.contents);
  for (const Row& row : task.rows) {
    hasher.Update(&row.first, sizeof(row.first));
    hasher.Update(row.tokens.data(), row.tokens.size() * sizeof(row.tokens[0]));
  }
  return hasher.HexDigest();
}

// What is divided by in a text's perplexities, and −Σ log p above it: of texts, or of the rows of the only text, over which
// its words and bytes are spread as its tokens are.
struct Units {
  std::vector<double> costs, tokens, words, bytes;
};

Units UnitsOf(const Task& task, std::span<const RowScore> scores) {
  Units units;
  const bool by_row = GoesByRow(task);
  for (const Example& example : task.examples) {
    const std::span<const RowScore> rows = scores.subspan(example.first_row, example.rows);
    double cost = 0;
    double tokens = 0;
    for (const RowScore& row : rows) {
      cost -= row.log_probability;
      tokens += static_cast<double>(row.predicted);
    }
    // Of strided windows neither the first token nor the first word is predicted.
    const double words = static_cast<double>(example.words) - (task.settings.windows == "strided" ? 1 : 0);
    const auto add = [&](double of_cost, double of_tokens) {
      units.costs.push_back(of_cost);
      units.tokens.push_back(of_tokens);
      units.words.push_back(words * of_tokens / tokens);
      units.bytes.push_back(static_cast<double>(example.bytes) * of_tokens / tokens);
    };
    if (!by_row) {
      add(cost, tokens);
      continue;
    }
    for (const RowScore& row : rows) add(-row.log_probability, static_cast<double>(row.predicted));
  }
  return units;
}

void MeasureTexts(const Task& task, std::span<const RowScore> scores, std::vector<Measure>* measures) {
  const Units units = UnitsOf(task, scores);
  const bool strided = task.settings.windows == "strided";
  const auto capped = [&](Mean exponent) {
    if (strided) exponent.value = std::min(exponent.value, kLargestExponent);
    return exponent;
  };
  measures->push_back(Exponential("perplexity", capped(RatioOf(units.costs, units.tokens))));
  measures->push_back(Exponential(strided ? "adjusted_perplexity" : "word_perplexity",
                                  capped(RatioOf(units.costs, units.words))));
  const Mean per_byte = RatioOf(units.costs, units.bytes);
  measures->push_back(Exponential("byte_perplexity", per_byte));
  Measure bits =
      MeasureOf("bits_per_byte", per_byte.value / std::numbers::ln2, per_byte, 1 / std::numbers::ln2);
  if (bits.standard_error) {
    bits.interval = {bits.value - kNormal95 * *bits.standard_error,
                     bits.value + kNormal95 * *bits.standard_error};
  }
  measures->push_back(std::move(bits));
}

void MeasureLastWords(const Task& task, std::span<const RowScore> scores, std::vector<Measure>* measures) {
  std::vector<double> hits, costs;
  for (const Example& example : task.examples) {
    const RowScore& row = scores[example.first_row];
    hits.push_back(row.is_greedy() ? 1 : 0);
    costs.push_back(-row.log_probability);
  }
  measures->push_back(Share("acc", hits));
  measures->push_back(Exponential("perplexity", MeanOf(costs)));
}

// The number of the likeliest choice, where log-probabilities are divided by lengths, if any; the first of several.
std::int64_t Choose(std::span<const RowScore> rows, const std::vector<std::int64_t>* lengths) {
  std::int64_t best = 0;
  const auto score = [&](std::int64_t c) {
    const auto i = static_cast<std::size_t>(c);
    return rows[i].log_probability / (lengths == nullptr ? 1.0 : static_cast<double>((*lengths)[i]));
  };
  for (std::int64_t c = 1; c < static_cast<std::int64_t>(rows.size()); ++c) {
    if (score(c) > score(best)) best = c;
  }
  return best;
}

struct Choices {
  std::int64_t plain = 0, by_characters = 0, by_bytes = 0;
};

Choices ChoicesOf(const Example& example, std::span<const RowScore> scores) {
  const std::span<const RowScore> rows = scores.subspan(example.first_row, example.rows);
  return {.plain = Choose(rows, nullptr),
          .by_characters = Choose(rows, &example.choice_characters),
          .by_bytes = Choose(rows, &example.choice_bytes)};
}

void MeasureChoices(const Task& task, std::span<const RowScore> scores, std::vector<Measure>* measures) {
  std::vector<double> plain, by_characters, by_bytes;
  for (const Example& example : task.examples) {
    const Choices chosen = ChoicesOf(example, scores);
    plain.push_back(chosen.plain == example.answer ? 1 : 0);
    by_characters.push_back(chosen.by_characters == example.answer ? 1 : 0);
    by_bytes.push_back(chosen.by_bytes == example.answer ? 1 : 0);
  }
  measures->push_back(Share("acc", plain));
  measures->push_back(Share("acc_norm", by_characters));
  measures->push_back(Share("acc_bytes", by_bytes));
}

}  // namespace

std::optional<double> StandardError(std::span<const double> deviations) {
  if (deviations.size() < 2) return std::nullopt;
  const auto n = static_cast<double>(deviations.size());
  double squares = 0;
  for (const double deviation : deviations) squares += deviation * deviation;
  return std::sqrt(n / (n - 1) * squares);
}

TaskResult Summarize(const Task& task, std::span<const RowScore> scores) {
  ENGINE_CHECK(scores.size() == task.rows.size(), "{} scores of {} rows", scores.size(), task.rows.size());
  TaskResult result{.task = task.settings.name,
                    .examples = static_cast<std::int64_t>(task.examples.size()),
                    .truncated = task.truncated,
                    .units = HashOfUnits(task)};
  for (const RowScore& row : scores) result.tokens += row.predicted;
  switch (task.settings.kind) {
    case TaskKind::kPerplexity:
      MeasureTexts(task, scores, &result.measures);
      break;
    case TaskKind::kLastWord:
      MeasureLastWords(task, scores, &result.measures);
      break;
    case TaskKind::kMultipleChoice:
      MeasureChoices(task, scores, &result.measures);
      break;
  }
  return result;
}

std::string LineOf(const TaskResult& result) {
  std::string line =
      fmt::format(" {} ({} example{}) |", result.task, result.examples, result.examples == 1 ? "" : "s");
  for (const Measure& measure : result.measures) {
    line += fmt::format(" {}: {:.4g}", measure.name, measure.value);
    if (measure.standard_error) line += fmt::format(" ± {:.2g}", *measure.standard_error);
    line += " |";
  }
  return line;
}

nlohmann::json ToJson(const TaskResult& result) {
  nlohmann::json measures = nlohmann::json::object();
  for (const Measure& measure : result.measures) {
    nlohmann::json& entry = measures[measure.name];
    entry["value"] = measure.value;
    if (measure.standard_error) entry["standard_error"] = *measure.standard_error;
    if (measure.interval) entry["interval"] = {measure.interval->first, measure.interval->second};
  }
  return {{"task", result.task},
          {"examples", result.examples},
          {"tokens", result.tokens},
          {"truncated", result.truncated},
          {"measures", std::move(measures)}};
}

std::string SamplesText(const Task& task, std::span<const RowScore> scores) {
  std::string text;
  for (const Example& example : task.examples) {
    nlohmann::json rows = nlohmann::json::array();
    for (const RowScore& row : scores.subspan(example.first_row, example.rows)) {
      rows.push_back({{"log_probability", row.log_probability},
                      {"tokens", row.predicted},
                      {"is_greedy", row.is_greedy()}});
    }
    nlohmann::json sample = {{"task", task.settings.name}, {"line", example.line}, {"rows", std::move(rows)}};
    if (task.settings.kind == TaskKind::kMultipleChoice) {
      const Choices chosen = ChoicesOf(example, scores);
      sample["answer"] = example.answer;
      sample["chosen"] = chosen.plain;
      sample["chosen_norm"] = chosen.by_characters;
      sample["chosen_bytes"] = chosen.by_bytes;
    }
    text += sample.dump() + "\n";
  }
  return text;
}

std::string DeviationsText(std::int64_t iteration, std::span<const TaskResult> results) {
  constexpr std::size_t kMostUnits = 100'000;
  std::string tasks;
  for (const TaskResult& result : results) {
    std::string measures;
    for (const Measure& measure : result.measures) {
      const bool finite = std::ranges::all_of(measure.deviations, [](double d) { return std::isfinite(d); });
      if (measure.deviations.size() > kMostUnits || !finite) continue;
      measures += fmt::format("{}\n\"{}\": [", measures.empty() ? "" : ",", measure.name);
      for (std::size_t i = 0; i < measure.deviations.size(); ++i)
        fmt::format_to(std::back_inserter(measures), "{}{:.6g}", i == 0 ? "" : ",", measure.deviations[i]);
      measures += "]";
    }
    tasks += fmt::format("{}\n{}: {{\"units\": \"{}\", \"measures\": {{{}}}}}", tasks.empty() ? "" : ",",
                         nlohmann::json(result.task).dump(), result.units, measures);
  }
  return fmt::format("{{\"iteration\": {}, \"tasks\": {{{}}}}}\n", iteration, tasks);
}

}  // namespace engine::evaluate

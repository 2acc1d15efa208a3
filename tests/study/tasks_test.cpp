#include "engine/study/tasks.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/data/temp_dir.h"

namespace engine::study {
namespace {

bool IsNear(double expected, const std::optional<double>& actual) {
  return actual && std::abs(expected - *actual) < 1e-9 * (1 + std::abs(expected));
}

}  // namespace

TEST_CASE("tasks of runs: the last evaluation's, from metrics.jsonl") {
  const data::TempDir folder;
  data::WriteFile(folder / "metrics.jsonl",
                  "{\"iteration\": 1, \"loss\": 2}\n"
                  "{\"iteration\": 1, \"validation_loss\": 3, \"tasks\": {\"a/acc\": 0.1}, \"task_errors\": "
                  "{\"a/acc\": 0.05}}\n"
                  "{\"iteration\": 2, \"validation_loss\": 3, \"tasks\": {\"a/acc\": 0.5, \"b/acc\": 1, "
                  "\"c/acc\": null}, "
                  "\"task_errors\": {\"a/acc\": 0.03}}\n"
                  "{\"iteration\": 3, \"loss\": 2}\n{\"tasks\"");
  const std::vector<TaskMeasure> measures = LastMeasures(folder.path());
  REQUIRE(measures.size() == 3);
  CHECK(measures[0].name == "a/acc");
  CHECK(measures[0].value == 0.5);
  CHECK(measures[0].standard_error == 0.03);
  CHECK_FALSE(measures[1].standard_error);
  CHECK(std::isinf(measures[2].value));  // it overflows, which JSON has no number for
  CHECK(LastMeasures(folder / "none").empty());
  // What an evaluation before the last one came to is not what the run came to.
  data::WriteFile(folder / "metrics.jsonl",
                  "{\"iteration\": 2, \"validation_loss\": 3, \"tasks\": {\"a/acc\": 0.5}}\n"
                  "{\"iteration\": 3, \"validation_loss\": 3}\n");
  CHECK(LastMeasures(folder.path()).empty());
}

TEST_CASE("tasks of runs: differences with their margins") {
  const std::vector<TaskMeasure> a = {{"x", 0.25, 0.03}, {"y", 1, {}}, {"gone", 2, 1}};
  const std::vector<TaskMeasure> b = {{"new", 2, 1}, {"y", 3, 0.1}, {"x", 0.5, 0.04}};
  const std::vector<TaskDifference> differences = Differences(a, b);
  REQUIRE(differences.size() == 2);
  CHECK(differences[0].name == "y");
  CHECK_FALSE(differences[0].margin);
  CHECK(differences[1].b - differences[1].a == 0.25);
  CHECK(IsNear(1.959963984540054 * 0.05, differences[1].margin));
  CHECK(WithMargin(0.25, differences[1].margin) == "0.25 ± 0.098");
  CHECK(WithMargin(0.25, std::nullopt) == "0.25");
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(WithMargin(0.25, infinity) == "0.25");
  CHECK(WithMargin(infinity, 1.0) == "overflows");
  CHECK(WithMargin(infinity - infinity, std::nullopt) == "overflows");
}

TEST_CASE("tasks of runs: what was asked the same is compared example by example") {
  const data::TempDir folder;
  const auto write = [&](const std::string& run, const std::string& units, int iteration,
                         const std::string& deviations) {
    std::filesystem::create_directory(folder / run);
    data::WriteFile(
        folder / run + "/metrics.jsonl",
        "{\"iteration\": 4, \"validation_loss\": 3, \"tasks\": {\"a/b/acc\": 0.5}, \"task_errors\": "
        "{\"a/b/acc\": 0.3}}\n");
    data::WriteFile(
        folder / run + "/task_deviations.json",
        fmt::format("{{\"iteration\": {}, \"tasks\": {{\"a/b\": {{\"units\": \"{}\", \"measures\": "
                    "{{\"acc\": {}}}}}}}}}",
                    iteration, units, deviations));
    return LastMeasures(folder / run);
  };
  const std::vector<TaskMeasure> a = write("a", "same", 4, "[0.1, -0.1, 0]");
  REQUIRE(a.size() == 1);
  REQUIRE(a[0].deviations.size() == 3);
  const auto difference_to = [&](const std::vector<TaskMeasure>& b) { return Differences(a, b).at(0); };
  // Differences of 0, 0.1 and −0.1: √(3 / 2 · 0.02).
  const TaskDifference paired = difference_to(write("b", "same", 4, "[0.1, 0, -0.1]"));
  CHECK(paired.paired);
  CHECK(IsNear(1.959963984540054 * std::sqrt(0.03), paired.margin));
  CHECK(IsNear(*paired.margin,
               StatisticsOfTasks({a}, {write("b", "same", 4, "[0.1, 0, -0.1]")})[0].difference_margin));
  for (const std::vector<TaskMeasure>& b :
       {write("c", "others", 4, "[0.1, 0, -0.1]"), write("d", "same", 3, "[0.1, 0, -0.1]"),
        write("e", "same", 4, "[0.1, 0]"), write("f", "same", 4, "[0.1, 0, \"x\"]"),
        write("g", "same", 4, "[")}) {
    CHECK_FALSE(difference_to(b).paired);
    CHECK(IsNear(1.959963984540054 * std::hypot(0.3, 0.3), difference_to(b).margin));
  }
}

TEST_CASE("tasks of runs: over seeds by Student's t, of one seed by the examples") {
  const std::vector<std::vector<TaskMeasure>> first = {{{"x", 1, 0.3}}, {{"x", 2, 0.3}}, {{"x", 3, 0.3}}};
  const std::vector<std::vector<TaskMeasure>> second = {{{"x", 2, 0.4}}, {{"x", 2, 0.4}}, {{"x", 5, 0.4}}};
  const std::vector<TaskStatistics> three = StatisticsOfTasks(first, second);
  REQUIRE(three.size() == 1);
  CHECK(three[0].mean == 3);
  CHECK(three[0].difference == 1);
  // Deviations √3 and 1 of three numbers; t of two degrees of freedom is 4.303.
  CHECK(IsNear(4.303, three[0].margin));
  CHECK(IsNear(4.303 / std::sqrt(3.0), three[0].difference_margin));
  const std::vector<TaskStatistics> one = StatisticsOfTasks({first[0]}, {second[0]});
  CHECK(IsNear(1.959963984540054 * 0.4, one[0].margin));
  CHECK(IsNear(1.959963984540054 * 0.5, one[0].difference_margin));
  CHECK(StatisticsOfTasks({}, {}).empty());
}

}  // namespace engine::study

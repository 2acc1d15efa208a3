#include "engine/train/report.h"

#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

IterationReport Line(std::int64_t iteration) {
  return {.iteration = iteration,
          .iterations = 10,
          .consumed_samples = 8 * iteration,
          .global_batch = 8,
          .loss = 1.0 / 3,
          .grad_norm = 2.5,
          .learning_rate = 1e-4,
          .elapsed_ms = 12.5,
          .tokens_per_second = 1024};
}

Reporter MustOpen(const TempDir& folder, std::int64_t iteration) {
  absl::StatusOr<Reporter> reporter = Reporter::Open(folder.path(), iteration, 1000, 4096);
  REQUIRE_MESSAGE(reporter.ok(), Message(reporter.status()));
  return *std::move(reporter);
}

std::vector<std::int64_t> Iterations(const TempDir& folder) {
  std::vector<std::int64_t> iterations;
  for (const nlohmann::json& line : Metrics(folder.path())) iterations.push_back(line["iteration"]);
  return iterations;
}

}  // namespace

TEST_CASE("metrics.jsonl: one object a line, exact numbers, readable while the run goes on") {
  const TempDir folder;
  Reporter reporter = MustOpen(folder, 0);
  REQUIRE(reporter.Iteration(Line(2)).ok());
  REQUIRE(reporter.Evaluation({.iteration = 2, .validation_loss = 0.1, .elapsed_ms = 3}).ok());
  CHECK(data::ReadFile(folder / "metrics.jsonl") ==
        "{\"iteration\":2,\"loss\":0.3333333333333333,\"grad_norm\":2.5,\"learning_rate\":0.0001,"
        "\"consumed_samples\":16,\"elapsed_ms\":12.5,\"tokens_per_second\":1024.0}\n"
        "{\"iteration\":2,\"validation_loss\":0.1,\"elapsed_ms\":3.0}\n");
}

TEST_CASE("metrics.jsonl: the ranks' times of an iteration that is logged") {
  const TempDir folder;
  Reporter reporter = MustOpen(folder, 0);
  IterationReport line = Line(1);
  line.rank_busy_ms = {11.5, 12.25};
  REQUIRE(reporter.Iteration(line).ok());
  CHECK(data::ReadFile(folder / "metrics.jsonl").ends_with("\"rank_busy_ms\":[11.5,12.25]}\n"));
}

TEST_CASE("the log has the first and the last iteration, and those of the interval") {
  std::vector<std::int64_t> logged;
  for (std::int64_t i = 1; i <= 10; ++i) {
    if (IsLogged(i, 10, 4)) logged.push_back(i);
  }
  CHECK((logged == std::vector<std::int64_t>{1, 4, 8, 10}));
}

TEST_CASE("lines after the iteration that is resumed are cut off, and so is what no program can read") {
  const TempDir folder;
  {
    Reporter reporter = MustOpen(folder, 0);
    for (int i = 2; i <= 5; ++i) REQUIRE(reporter.Iteration(Line(i)).ok());
    REQUIRE(reporter.Evaluation({.iteration = 5, .validation_loss = 0.1, .elapsed_ms = 3}).ok());
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"iteration\":6,\"lo";  // killed while it wrote
  {
    Reporter reporter = MustOpen(folder, 4);
    CHECK((Iterations(folder) == std::vector<std::int64_t>{2, 3, 4}));
    REQUIRE(reporter.Iteration(Line(5)).ok());
  }
  CHECK((Iterations(folder) == std::vector<std::int64_t>{2, 3, 4, 5}));
  data::WriteFile(folder / "metrics.jsonl", "[1]\n{\"iteration\":\"x\"}\n\n{\"iteration\":1}\n\xFF\n");
  const Reporter reporter = MustOpen(folder, 9);
  CHECK((Iterations(folder) == std::vector<std::int64_t>{1}));
}

TEST_CASE("a folder that is not there is an error with the file's name") {
  const absl::StatusOr<Reporter> reporter = Reporter::Open("/nonexistent/folder", 0, 1, 0);
  CHECK(Message(reporter.status()) ==
        "/nonexistent/folder/metrics.jsonl: cannot open: No such file or directory");
}

}  // namespace engine::train::testing

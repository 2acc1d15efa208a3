#include "engine/train/report.h"

#include <sys/stat.h>

#include <cmath>
#include <regex>
#include <sstream>

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
          .elapsed_ms = 12.5};
}

// 64 tokens in 12.5 ms; 4e9 FLOPs on two devices of 1 TFLOP/s.
constexpr RunFacts kFacts = {.arenas_bytes = 8192,
                             .arena_bytes = 4096,
                             .global_batch = 8,
                             .tokens = 64,
                             .devices = 2,
                             .model_flops = 4e9,
                             .peak_flops = 1e12,
                             .gpus = true};

std::unique_ptr<Reporter> MustOpen(const TempDir& folder, std::int64_t iteration,
                                   std::int64_t interval = 1000, const RunFacts& facts = kFacts) {
  absl::StatusOr<std::unique_ptr<Reporter>> reporter =
      Reporter::Open(folder.path(), iteration, interval, facts);
  REQUIRE_MESSAGE(reporter.ok(), Message(reporter.status()));
  return *std::move(reporter);
}

std::vector<std::int64_t> Iterations(const TempDir& folder) {
  std::vector<std::int64_t> iterations;
  for (const nlohmann::json& line : Metrics(folder.path())) iterations.push_back(line["iteration"]);
  return iterations;
}

// What a sink was given.
class GivenRecords : public metrics::Sink {
 public:
  explicit GivenRecords(std::vector<metrics::Record>* records) : records_(records) {}
  std::string Name() const override { return "given"; }
  absl::Status Write(const metrics::Record& record) override {
    records_->push_back(record);
    return absl::OkStatus();
  }

 private:
  std::vector<metrics::Record>* records_;
};

}  // namespace

TEST_CASE("evaluations and checkpoints lie where their iteration ended, over samples too") {
  const TempDir folder;
  std::vector<metrics::Record> records;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
  reporter->Add(std::make_unique<GivenRecords>(&records), 2);
  for (int i = 1; i <= 3; ++i) reporter->Iteration(Line(i));
  Caught log(stdout);
  reporter->Evaluation(
      {.iteration = 3, .validation_loss = 0.1, .metrics = {{"balance", 0.5}}, .elapsed_ms = 3});
  log.End();
  reporter->Saved({.iteration = 2, .elapsed_ms = 1500, .stall_ms = 20});
  REQUIRE(records.size() == 3);
  CHECK((records[0].iteration == 2 && records[0].consumed_samples == 16));
  CHECK((records[1].iteration == 3 && records[1].consumed_samples == 24));
  CHECK((records[2].iteration == 3 && records[2].consumed_samples == 24));
  CHECK(Metrics(folder.path())[3]["metrics"]["balance"] == 0.5);
}

TEST_CASE("metrics.jsonl: one object a line, exact numbers, readable while the run goes on") {
  const TempDir folder;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
  reporter->Iteration(Line(2));
  reporter->Evaluation({.iteration = 2, .validation_loss = 0.1, .elapsed_ms = 3});
  reporter->Saved({.iteration = 2, .elapsed_ms = 1500, .stall_ms = 1750});
  const std::string text =
      std::regex_replace(data::ReadFile(folder / "metrics.jsonl"), std::regex("\"20[^\"]*Z\""), "\"TIME\"");
  CHECK(text ==
        "{\"iteration\":2,\"timestamp\":\"TIME\",\"loss\":0.3333333333333333,\"grad_norm\":2.5,\"learning_"
        "rate\":0.0001,"
        "\"loss_scale\":1.0,\"global_batch\":8,\"consumed_samples\":16,\"consumed_tokens\":128,\"skipped_"
        "iterations\":0,\"nan_"
        "iterations\":0,"
        "\"elapsed_ms\":12.5,\"data_wait_ms\":0.0,\"tokens_per_second\":5120.0,"
        "\"tflops_per_device\":0.16,"
        "\"mfu\":0.16,\"arena_bytes\":4096,\"memory_bytes\":null,\"ranks\":2}\n"
        "{\"iteration\":2,\"timestamp\":\"TIME\",\"validation_loss\":0.1,\"elapsed_ms\":3.0}\n"
        "{\"iteration\":2,\"timestamp\":\"TIME\",\"saved_iteration\":2,\"save_seconds\":1.5,\"stall_"
        "seconds\":1.75}\n");
}

TEST_CASE("metrics.jsonl: each metric by its name, of a model with several") {
  const TempDir folder;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
  IterationReport line = Line(1);
  line.metrics = {{"loss", 2.5}, {"balance", 0.125}};
  reporter->Iteration(line);
  const nlohmann::json found = Metrics(folder.path()).at(0)["metrics"];
  CHECK(found == nlohmann::json{{"loss", 2.5}, {"balance", 0.125}});
}

TEST_CASE("metrics.jsonl: null for what is not known or no number, and every line is JSON") {
  const TempDir folder;
  RunFacts facts = kFacts;
  facts.peak_flops = 0;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0, 1000, facts);
  IterationReport line = Line(2);
  line.elapsed_ms = 0;  // by a clock that is too coarse
  line.loss = std::nan("");
  line.nan = true;
  line.device_bytes = 123;
  Caught log(stdout);
  reporter->Iteration(line);
  CHECK(Contains(log.End(), "| number of nan iterations:   1 |"));
  const nlohmann::json written = Metrics(folder.path()).at(0);
  for (const char* key : {"loss", "tokens_per_second", "tflops_per_device", "mfu"})
    CHECK(written[key].is_null());
  CHECK(written["nan_iterations"] == 1);
  CHECK(written["memory_bytes"] == 123);
}

TEST_CASE("metrics.jsonl: the ranks' times of an iteration that is logged") {
  const TempDir folder;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
  IterationReport line = Line(1);
  line.rank_busy_ms = {11.5, 12.25};
  reporter->Iteration(line);
  CHECK(data::ReadFile(folder / "metrics.jsonl").ends_with("\"rank_busy_ms\":[11.5,12.25]}\n"));
  line.iteration = 2;
  line.rank_clock_mhz = {1980, std::nan("")};
  line.rank_temperature_c = {63, std::nan("")};
  reporter->Iteration(line);
  CHECK(data::ReadFile(folder / "metrics.jsonl")
            .ends_with("\"rank_busy_ms\":[11.5,12.25],\"rank_clock_mhz\":[1980.0,null],"
                       "\"rank_temperature_c\":[63.0,null]}\n"));
}

TEST_CASE("the log has the first and the last iteration, and those of the interval") {
  std::vector<std::int64_t> logged;
  for (std::int64_t i = 1; i <= 10; ++i) {
    if (IsLogged(i, 10, 4)) logged.push_back(i);
  }
  CHECK((logged == std::vector<std::int64_t>{1, 4, 8, 10}));
}

TEST_CASE("the log has Megatron-LM's means over the interval, and its last values") {
  const TempDir folder;
  Caught caught(stdout);
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0, 4);
  // Iteration i takes 10·i ms and has loss i; the third is skipped.
  for (std::int64_t i = 1; i <= 4; ++i) {
    IterationReport line = Line(i);
    line.iterations = 100;
    line.loss = static_cast<double>(i);
    line.elapsed_ms = 10 * static_cast<double>(i);
    line.grad_norm = 100 + static_cast<double>(i);
    line.loss_scale = i < 3 ? 4 : 2;
    line.skipped = i == 3;
    line.skipped_iterations = i >= 3 ? 1 : 0;
    reporter->Iteration(line);
  }
  IterationReport skipped = Line(8);
  skipped.skipped = true;
  skipped.skipped_iterations = 2;
  reporter->Iteration(skipped);
  std::istringstream log(caught.End());
  std::string lines[3];
  for (std::string& line : lines) REQUIRE(std::getline(log, line));
  // The first iteration's line is its own; the second line is of iterations 2 to 4, without the third's loss.
  CHECK(Contains(lines[0],
                 "] iteration        1/     100 | consumed samples:            8 | elapsed time per "
                 "iteration (ms): 10.0 | throughput per GPU (TFLOP/s/GPU): 0.2 | learning rate: "
                 "1.000000E-04 | global batch size:     8 | lm loss: 1.000000E+00 | loss scale: 4.0 | "
                 "grad norm: 101.000 | number of skipped iterations:   0 | number of nan iterations:   "
                 "0 | tokens/s: 6400 | memory: 8.00 KiB |"));
  CHECK(Contains(lines[1], "iteration        4/     100 |"));
  CHECK(Contains(lines[1], "elapsed time per iteration (ms): 30.0 |"));
  CHECK(Contains(lines[1], "lm loss: 3.000000E+00 | loss scale: 2.0 | grad norm: 104.000 |"));
  CHECK(Contains(lines[1], "number of skipped iterations:   1 |"));
  CHECK(Contains(lines[1], "tokens/s: 2133 |"));
  // Nothing was trained since: no loss, no norm.
  CHECK(
      Contains(lines[2], "global batch size:     8 | loss scale: 1.0 | number of skipped iterations:   1 |"));
}

TEST_CASE("the log's perplexity is e to the tokens' loss, whatever that is") {
  const TempDir folder;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
  Caught caught(stdout);
  for (const double loss : {1.0, 25.0, 556.05, 800.0}) {
    reporter->Evaluation(
        {.iteration = 1, .validation_loss = loss + 0.5, .token_loss = loss, .elapsed_ms = 1});
  }
  const std::string log = caught.End();
  CHECK(Contains(log, "lm loss value: 1.500000E+00 | lm loss PPL: 2.718282E+00 |"));
  CHECK(Contains(log, "lm loss PPL: 7.200490E+10 |"));  // e^25 = 72004899337.4
  CHECK(Contains(log, "lm loss PPL: 3.086361E+241 |"));
  CHECK(Contains(log, "lm loss PPL: >1.797693E+308 |"));
  Caught without(stdout);
  reporter->Evaluation({.iteration = 1, .validation_loss = 2, .token_loss = {}, .elapsed_ms = 1});
  const std::string no_perplexity = without.End();
  CHECK(Contains(no_perplexity, "lm loss value: 2.000000E+00 |"));
  CHECK(!Contains(no_perplexity, "PPL"));
}

TEST_CASE("notes go to standard error") {
  const TempDir folder;
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
  Caught output(stdout);
  Caught notes(stderr);
  reporter->Line("a line");
  reporter->Note("a reader's business");
  CHECK(notes.End() == "note: a reader's business\n");
  CHECK(output.End() == "a line\n");
}

TEST_CASE("a resumed run's metrics stay the same file, whose beginning is never gone") {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
    for (int i = 2; i <= 5; ++i) reporter->Iteration(Line(i));
  }
  struct stat before = {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  const std::string text = data::ReadFile(path);
  std::ifstream follower(path);  // as `tail -f` holds it
  { const std::unique_ptr<Reporter> reporter = MustOpen(folder, 3); }
  struct stat after = {};
  REQUIRE(::stat(path.c_str(), &after) == 0);
  CHECK(after.st_ino == before.st_ino);
  const std::string kept = data::ReadFile(path);
  CHECK(text.starts_with(kept));
  CHECK(std::string(std::istreambuf_iterator<char>(follower), {}) == kept);
  // Nothing to cut off: not touched, so that a full disk or a reader has nothing to suffer from.
  { const std::unique_ptr<Reporter> reporter = MustOpen(folder, 3); }
  CHECK(data::ReadFile(path) == kept);

  // Killed between the last byte of a line and its end.
  data::WriteFile(path, kept.substr(0, kept.size() - 1));
  {
    const std::unique_ptr<Reporter> reporter = MustOpen(folder, 3);
    reporter->Iteration(Line(4));
  }
  CHECK((Iterations(folder) == std::vector<std::int64_t>{2, 3, 4}));
}

TEST_CASE("the first line of a resumed run's metrics says that it was resumed, and no other does") {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  {
    const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
    for (int i = 1; i <= 2; ++i) reporter->Iteration(Line(i));
  }
  CHECK(data::ReadFile(path).find("resumed") == std::string::npos);
  {
    const std::unique_ptr<Reporter> reporter = MustOpen(folder, 1);
    for (int i = 2; i <= 3; ++i) reporter->Iteration(Line(i));
  }
  const std::string text = data::ReadFile(path);
  const std::size_t told = text.find(",\"resumed_iteration\":1}\n{\"iteration\":3,");
  CHECK(told != std::string::npos);
  CHECK(text.find("resumed", told + 5) == std::string::npos);
}

TEST_CASE("lines after the iteration that is resumed are cut off, and so is what no program can read") {
  const TempDir folder;
  {
    const std::unique_ptr<Reporter> reporter = MustOpen(folder, 0);
    for (int i = 2; i <= 5; ++i) reporter->Iteration(Line(i));
    reporter->Evaluation({.iteration = 5, .validation_loss = 0.1, .elapsed_ms = 3});
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << "{\"iteration\":6,\"lo";  // killed while it wrote
  {
    const std::unique_ptr<Reporter> reporter = MustOpen(folder, 4);
    CHECK((Iterations(folder) == std::vector<std::int64_t>{2, 3, 4}));
    reporter->Iteration(Line(5));
  }
  CHECK((Iterations(folder) == std::vector<std::int64_t>{2, 3, 4, 5}));
  // What is no line of ours goes from the end, where a machine that lost its power leaves it; before a line
  // of ours it stays.
  const std::string before = "[1]\n{\"iteration\":\"x\"}\n\n{\"iteration\":1}\n";
  data::WriteFile(folder / "metrics.jsonl", before + "\xFF\n" + std::string(100, '\0'));
  const std::unique_ptr<Reporter> reporter = MustOpen(folder, 9);
  CHECK(data::ReadFile(folder / "metrics.jsonl") == before);
}

TEST_CASE("a folder that is not there is an error with the file's name") {
  const absl::StatusOr<std::unique_ptr<Reporter>> reporter =
      Reporter::Open("/nonexistent/folder", 0, 1, kFacts);
  CHECK(Message(reporter.status()) ==
        "cannot open /nonexistent/folder/metrics.jsonl: No such file or directory");
}

}  // namespace engine::train::testing

// Whole runs whose recipe names sinks.
#include <algorithm>
#include <filesystem>

#include "engine/launch/socket.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> FilesBelow(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::size_t Occurrences(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

std::vector<std::string> SinkSets(const std::string& textfile, std::int64_t iterations) {
  return {fmt::format("training.iterations={}", iterations),
          "evaluation.interval=2",
          "evaluation.iterations=1",
          "checkpoint.interval=2",
          "logging.sinks=[\"tensorboard\",\"wandb\",\"prometheus\"]",
          "logging.prometheus.textfile=\"" + textfile + "\""};
}

}  // namespace

TEST_CASE("a run feeds the sinks that its recipe names, and goes on in them when it is resumed") {
  const TempDir folder;
  WriteDataset(folder / "text", 200);
  const std::string out = folder / "out";
  const std::string textfile = folder / "run.prom";
  const std::string seed = "4294967295";
  const auto recipe = [&](std::int64_t iterations) {
    std::vector<std::string> sets = SinkSets(textfile, iterations);
    sets.push_back("training.seed=" + seed);
    return RunRecipe(folder, sets);
  };
  MustRun(recipe(4), out);
  const RunResult second = MustRunAndNote(recipe(6), out);
  CHECK_MESSAGE(Occurrences(second.notes, "warning") == 0, second.notes);

  const std::vector<std::string> events = FilesBelow(out + "/tensorboard");
  REQUIRE(events.size() == 4);  // by iteration and by samples, of two processes
  std::string first_events;
  for (const std::string& file : events) {
    if (Occurrences(file, "/samples/") == 0) {
      first_events = data::ReadFile(file);
      break;
    }
  }
  for (const char* part : {"brain.Event:2", "lm loss", "lm loss validation", "grad-norm", "iteration-time",
                           "engine/checkpoint-stall-seconds", "_hparams_/session_end_info", "model.layers",
                           "| rank | host |", "hidden = 16", "recipe", "plan"}) {
    INFO(part);
    CHECK(Contains(first_events, part));
  }
  const std::vector<std::string> wandb = FilesBelow(out + "/wandb");
  REQUIRE(wandb.size() == 1);
  CHECK(data::ReadFile(wandb[0]).starts_with(":W&B"));
  CHECK(Occurrences(data::ReadFile(wandb[0]), "_timestamp") >= 6);
  CHECK(Occurrences(data::ReadFile(wandb[0]), seed) == 2);  // once for each process
  CHECK(Occurrences(data::ReadFile(wandb[0]), seed + ".0") == 0);
  const std::string metrics = data::ReadFile(textfile);
  for (const char* line : {"engine_iteration{run=\"out\"} 6\n", "engine_training_iterations{run=\"out\"} 6\n",
                           "engine_consumed_samples_total{run=\"out\"} 48\n",
                           "engine_checkpoint_stall_seconds_count{run=\"out\"} 1\n"}) {
    CHECK_MESSAGE(Contains(metrics, line), metrics);
  }
}

TEST_CASE(
    "histograms of weights and gradients go to TensorBoard alone, at their interval, and change nothing") {
  const TempDir folder;
  WriteDataset(folder / "text", 200);
  std::vector<std::string> sets = SinkSets(folder / "run.prom", 5);
  MustRun(RunRecipe(folder, sets), folder / "without");
  sets.emplace_back("logging.histogram_interval=2");
  const RunResult with = MustRunAndNote(RunRecipe(folder, sets), folder / "with");
  CHECK_MESSAGE(Occurrences(with.notes, "warning") == 0, with.notes);
  CHECK(TimelessMetrics(folder / "with") == TimelessMetrics(folder / "without"));
  std::string events;
  for (const std::string& file : FilesBelow(folder / "with/tensorboard")) {
    if (Occurrences(file, "/samples/") == 0) events += data::ReadFile(file);
  }
  for (const char* tag : {"weights/final_norm.weight", "gradients/final_norm.weight"})
    CHECK(Occurrences(events, tag) == 2);
  CHECK(Occurrences(data::ReadFile(FilesBelow(folder / "with/wandb").at(0)), "gradients/") == 0);
}

TEST_CASE("sinks that fail are a warning each, and the run has the same numbers as without any") {
  const TempDir folder;
  WriteDataset(folder / "text", 200);
  const std::string plain = folder / "plain";
  MustRun(RunRecipe(folder, {"training.iterations=4"}), plain);

  const std::string out = folder / "out";
  fs::create_directory(out);
  for (const char* name : {"/tensorboard", "/wandb"}) data::WriteFile(out + name, "no folder");
  const absl::StatusOr<launch::Descriptor> taken = launch::Listen({.host = "127.0.0.1", .port = 0});
  REQUIRE(taken.ok());
  std::vector<std::string> sets = SinkSets(folder / "nowhere/run.prom", 4);
  sets.push_back(fmt::format("logging.prometheus.port={}", launch::PortOf(*taken)));
  const RunResult result = MustRunAndNote(RunRecipe(folder, sets), out);
  CHECK_MESSAGE(Occurrences(result.notes, "warning: ") == 8, result.notes);
  CHECK_MESSAGE(
      Occurrences(result.notes, "the run goes on, keeps its last 10000 records and tries again\n") == 2,
      result.notes);
  CHECK_MESSAGE(Occurrences(result.notes, "; the run goes on and tries again\n") == 2, result.notes);
  CHECK_MESSAGE(Occurrences(result.notes, "records are lost: ") == 2, result.notes);
  for (const char* what : {"/tensorboard/", "/wandb/", "/nowhere/run.prom: No such file or directory",
                           "is taken by another program"}) {
    CHECK_MESSAGE(Contains(result.notes, what), result.notes);
  }
  const std::vector<nlohmann::json> expected = IterationMetrics(plain);
  const std::vector<nlohmann::json> found = IterationMetrics(out);
  REQUIRE(found.size() == 4);
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i]["loss"] == expected[i]["loss"]);
}

}  // namespace engine::train::testing

#include "engine/view/run_view.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "engine/view/take_record.h"
#include "tests/view/made_up_run.h"

namespace engine::view {
namespace {

using State = RunView::State;
using testing::kBegin;
using testing::MadeUpRun;
using testing::MetricsText;

RunReader Opened(const std::string& folder) {
  absl::StatusOr<RunReader> reader = RunReader::Open(folder);
  REQUIRE_MESSAGE(reader.ok(), reader.status().ToString());
  reader->Refresh(RunReader::kAllBytes);
  return *std::move(reader);
}

std::string OpenError(const std::string& folder) { return Message(RunReader::Open(folder).status()); }

}  // namespace

TEST_CASE("run view: all files of a run that goes on") {
  const MadeUpRun run;
  const MetricsText metrics = MetricsText().RunTo(60);
  run.Write("metrics.jsonl", metrics.text());
  std::filesystem::create_directory(run.folder + "/checkpoints/.writing-iteration_0000075-12");
  run.MakeOld();
  RunReader reader = Opened(run.folder + "/");
  const RunView& view = reader.view();
  CHECK(view.name == "made-up");
  CHECK(view.notes.empty());
  REQUIRE(view.plan.has_value());
  CHECK(view.plan->layout == "4 ranks: dp 2 · pp 2");
  CHECK(view.plan->Fact(predict::Section::kPrediction, "iteration") == 0.45);
  CHECK(!view.plan->Fact(predict::Section::kPrediction, "no such"));
  REQUIRE(view.plan->side.recipe.has_value());
  CHECK(view.Iterations() == 100);
  CHECK(view.recipe_path == "/recipes/made-up.toml");
  CHECK(view.last.iteration == 60);
  CHECK(view.last[metrics::kMfu] == 0.35);
  CHECK(view.last.ended_unix_s == kBegin + 30 + 2 + 4);  // before the evaluation that follows
  CHECK(view.evaluations == 3);
  CHECK(view.last_evaluation->iteration == 60);
  CHECK(view.checkpoints == 2);
  CHECK(view.checkpoint_records.back().iteration == 50);
  CHECK(view.kept_checkpoints == std::vector<std::int64_t>{50});
  CHECK(view.checkpoint_being_written == 75);
  CHECK(view.rank_busy_ms == std::vector<double>{400, 410, 480, 405});
  CHECK(view.iteration_ms.Quantile(0.5) == doctest::Approx(500).epsilon(0.01));
  CHECK(view.time.wall_s() == doctest::Approx(30 + 3 + 4));
  CHECK(view.time.data_wait_s() == doctest::Approx(0.05));
  CHECK(view.StateAt(metrics.now() + 9) == State::kRunning);  // 5 × the checkpoint's 2 s
  CHECK(view.StateAt(metrics.now() + 11) == State::kSilent);
  // 40 iterations of half a second, and evaluations and checkpoints as before: 37 s took 60.
  REQUIRE(view.Left().has_value());
  CHECK(view.Left()->seconds == doctest::Approx(37.0 * 40 / 60));
  CHECK(view.Left()->least == doctest::Approx(view.Left()->most));
}

TEST_CASE("run view: follows a run, which a resume cuts off, to its end") {
  const MadeUpRun run;
  run.Write("metrics.jsonl", MetricsText().RunTo(60).text());
  RunReader reader = Opened(run.folder);
  run.Write("metrics.jsonl", MetricsText().RunTo(50).Pause(100).RunTo(55).text());
  reader.Refresh(RunReader::kAllBytes);
  CHECK(reader.view().last.iteration == 55);
  CHECK(reader.view().history.Buckets().back().last_iteration == 55);
  CHECK(reader.view().evaluations == 2);
  CHECK(reader.view().plan.has_value());
  REQUIRE(reader.view().time.interruptions() == 1);
  CHECK(reader.view().time.listed()[0].after_iteration == 50);
  CHECK(reader.view().time.interrupted_s() == doctest::Approx(100));
  run.Write("outcome.json", R"({"outcome": "failed", "iteration": 55, "iterations": 100, "reason": "no more",
    "retryable": true, "host": "h", "ended": "2026-09-21T14:20:00Z"})");
  reader.Refresh(RunReader::kAllBytes);
  CHECK(reader.view().StateAt(0) == State::kFailed);
  CHECK(reader.view().outcome->reason == "no more");
  CHECK(reader.view().outcome->retryable);
  CHECK(reader.view().Left().has_value());  // shown of a running one alone
  for (const auto& [word, state] : {std::pair{"finished", State::kFinished}, {"stopped", State::kStopped}}) {
    run.Write("outcome.json", fmt::format(R"({{"outcome": "{}", "iteration": null}})", word));
    reader.Refresh(RunReader::kAllBytes);
    CHECK(reader.view().StateAt(0) == state);
    CHECK(!reader.view().outcome->iteration);
  }
  std::filesystem::remove(run.folder + "/outcome.json");
  reader.Refresh(RunReader::kAllBytes);
  CHECK(!reader.view().outcome);
}

TEST_CASE("run view: damaged, missing and foreign files are notes, and the rest is shown") {
  const MadeUpRun run;
  std::string text = MetricsText().RunTo(3).text();
  text += '\0';
  text += "\xff broken\n[1]\n{\"iteration\":\"x\"}\n{\"iteration\":4,\"loss\":null,\"nan_iterations\":1}\n";
  text += "{\"iteration\":5,\"more\":[[[[1]]]]}\n{\"iteration\":6,\"loss\":1";  // the last is half
  run.Write("metrics.jsonl", text);
  run.Write("outcome.json", "{");
  run.Write("plan.json", testing::PlanJson("[model]\\nfuture = 1\\n"));
  RunReader reader = Opened(run.folder);
  const RunView& view = reader.view();
  CHECK(view.last.iteration == 4);
  CHECK(view.nan_iteration == 4);
  CHECK(std::isnan(view.last[metrics::kLoss]));
  CHECK(view.plan->layout == "4 ranks: dp 2 · pp 2");
  CHECK(!view.plan->side.recipe);
  CHECK(!view.Iterations());
  CHECK(!view.Left());
  REQUIRE(view.notes.size() == 3);
  CHECK(view.notes[0].find("plan.json: its recipe is of another version: ") != std::string::npos);
  CHECK(view.notes[1] == run.folder + "/metrics.jsonl: 3 lines that are no record");
  CHECK(view.notes[2].find("outcome.json:1:2: error:") != std::string::npos);
  // What is mended is read anew.
  run.Write("plan.json", testing::PlanJson());
  std::filesystem::remove(run.folder + "/outcome.json");
  std::filesystem::remove(run.folder + "/metrics.jsonl");
  std::filesystem::create_directory(run.folder + "/metrics.jsonl");
  reader.Refresh(RunReader::kAllBytes);
  CHECK(view.Iterations() == 100);
  REQUIRE(view.notes.size() == 2);  // and the lines that were read before
  CHECK(view.notes[0] == run.folder + "/metrics.jsonl is a folder, not a regular file");
}

TEST_CASE("run view: the time that is left, and its range from the fastest to the slowest stretch") {
  const MadeUpRun run;
  std::string text;
  for (int i = 1; i <= 16; ++i)
    text += fmt::format("{{\"iteration\":{},\"loss\":1,\"global_batch\":8,\"elapsed_ms\":{}}}\n", i,
                        i <= 8 ? 500 : 1000);
  run.Write("metrics.jsonl", text);
  const RunReader reader = Opened(run.folder);
  REQUIRE(reader.view().Left().has_value());
  CHECK(reader.view().Left()->seconds == doctest::Approx(84 * 0.75));
  CHECK(reader.view().Left()->least == doctest::Approx(84 * 0.5));
  CHECK(reader.view().Left()->most == doctest::Approx(84));
}

TEST_CASE("run view: before the first record, of records alone, and of no run at all") {
  const MadeUpRun run;
  CHECK(Opened(run.folder).view().StateAt(0) == State::kStarting);
  const data::TempDir folder;
  CHECK(OpenError(folder / "none") == (folder / "none") + ": No such file or directory");
  CHECK(OpenError(folder.path()) ==
        folder.path() + " holds no run: neither metrics.jsonl, plan.json nor outcome.json");
  // An early version's: no time, and fewer numbers.
  data::WriteFile(folder / "metrics.jsonl",
                  "{\"iteration\":1,\"loss\":5,\"elapsed_ms\":300,\"tokens_per_second\":8}\n"
                  "{\"iteration\":2,\"loss\":4,\"elapsed_ms\":200,\"tokens_per_second\":9}\n");
  RunReader reader = Opened(folder.path());
  CHECK(reader.view().last.iteration == 2);
  CHECK(reader.view().time.wall_s() == 0.5);
  CHECK(!reader.view().Iterations());
  CHECK(OpenError(folder / "metrics.jsonl") == (folder / "metrics.jsonl") + " is no folder");
}

TEST_CASE("run view: reads in parts, and writes nothing") {
  const MadeUpRun run;
  std::string text;
  text.resize(std::size_t{3} << 20, '\n');
  run.Write("metrics.jsonl", MetricsText().RunTo(2).text() + text + "{\"iteration\":3,\"loss\":1}\n");
  const auto permissions = std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec;
  std::filesystem::permissions(run.folder, permissions);
  const auto before = std::filesystem::last_write_time(run.folder);
  absl::StatusOr<RunReader> reader = RunReader::Open(run.folder);
  REQUIRE(reader.ok());
  reader->Refresh(1);
  CHECK(reader->view().share_read < 0.5);
  CHECK(reader->view().last.iteration == 2);
  while (reader->view().share_read < 1) reader->Refresh(1);
  CHECK(reader->view().last.iteration == 3);
  CHECK(reader->view().notes.empty());
  CHECK(std::filesystem::last_write_time(run.folder) == before);
  std::filesystem::permissions(run.folder, std::filesystem::perms::owner_all);
}

TEST_CASE("records: times of records") {
  CHECK(UnixSecondsOf("1970-01-01T00:00:01.500Z") == 1.5);
  CHECK(UnixSecondsOf("2026-09-21T14:13:20Z") == kBegin);
  CHECK(UnixSecondsOf("2024-02-29T23:59:59.999Z") == doctest::Approx(1709251199.999));
  for (const char* wrong :
       {"", "2026", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-09-21 14:13:20Z",
        "2026-09-21T14:13:20", "2026-09-21T14:13:20.25Z", "x026-09-21T14:13:20Z"})
    CHECK(UnixSecondsOf(wrong) == 0);
}

}  // namespace engine::view

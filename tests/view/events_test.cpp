#include "engine/view/events.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/view/made_up_run.h"

namespace engine::view {
namespace {

using Kind = Event::Kind;
using testing::kBegin;
using testing::MadeUpRun;
using testing::MetricsText;
using testing::Stamp;

RunReader ReaderOfEvents(const MadeUpRun& run, const std::string& metrics) {
  run.Write("metrics.jsonl", metrics);
  absl::StatusOr<RunReader> reader = RunReader::Open(run.folder);
  REQUIRE(reader.ok());
  reader->Refresh(RunReader::kAllBytes);
  return *std::move(reader);
}

std::string EventText(const Event& event) {
  return fmt::format("{} {} at {:.2f} for {:.2f}: {}", event.name(), event.iteration,
                     event.began_unix_s > 0 ? event.began_unix_s - kBegin : -1, event.seconds, event.text);
}

std::vector<std::string> TextsOf(const RunView& view) {
  std::vector<std::string> texts;
  for (const Event& event : EventsOf(view)) texts.push_back(EventText(event));
  return texts;
}

// A line of an iteration of half a second.
std::string IterationLine(std::int64_t iteration, double ended_s, const std::string& more) {
  return fmt::format(R"({{"iteration":{},"timestamp":"{}","loss":1,"elapsed_ms":500{}}})"
                     "\n",
                     iteration, Stamp(kBegin + ended_s), more);
}

}  // namespace

TEST_CASE("events: of all files, in the order of time") {
  const MadeUpRun run;
  run.Write("faults.jsonl", fmt::format(R"({{"fault":"rank=1,iteration=22,at=forward,kind=kill","rank":1,)"
                                        R"("iteration":22,"timestamp":{:.0f}}})"
                                        "\n",
                                        kBegin + 11));
  run.Write("outcome.json",
            R"({"outcome":"failed","iteration":26,"reason":"out of \u001b memory","ended":")" +
                Stamp(kBegin + 120) + "\"}");
  const RunReader reader = ReaderOfEvents(run, MetricsText().RunTo(21).Pause(100).RunTo(26).text());
  CHECK(TextsOf(reader.view()) ==
        std::vector<std::string>{
            "start 1 at 0.00 for 0.00: first iteration",
            "evaluation 20 at 10.00 for 1.00: validation loss 3.2036",
            "fault 22 at 11.00 for 0.00: rank=1,iteration=22,at=forward,kind=kill",
            "interruption 21 at 11.50 for 100.00: resumed after 1 min 40 s",
            "checkpoint 25 at 113.50 for 2.00: training stood still for 2.0 s, whole on disk after 2.0 s",
            "end 26 at 120.00 for 0.00: failed: out of \\x1b memory"});
  // The file's time is in whole seconds.
  run.Write("outcome.json",
            R"({"outcome":"finished","iteration":26,"ended":")" + Stamp(kBegin + 115) + "\"}");
  RunReader again = ReaderOfEvents(run, MetricsText().RunTo(21).Pause(100).RunTo(26).text());
  CHECK(TextsOf(again.view()).back() == "end 26 at 115.50 for 0.00: finished");
}

TEST_CASE("events: a run that goes on with another number of ranks") {
  const MadeUpRun run;
  std::string text = IterationLine(1, 0.5, "");  // of an older version
  text += IterationLine(2, 1.0, R"(,"ranks":4)");
  text += IterationLine(3, 5.0, R"(,"ranks":3,"resumed_iteration":2)");
  text += IterationLine(4, 5.5, R"(,"ranks":3)");
  text += IterationLine(5, 9.0, R"(,"ranks":4)");
  const RunReader reader = ReaderOfEvents(run, text);
  const std::vector<std::string> texts = TextsOf(reader.view());
  const auto holds = [&](const char* text) { return std::count(texts.begin(), texts.end(), text) == 1; };
  CHECK(holds("ranks 3 at 4.50 for 0.00: 3 ranks instead of 4"));
  CHECK(holds("ranks 5 at 8.50 for 0.00: 4 ranks instead of 3"));
  CHECK(std::count_if(texts.begin(), texts.end(),
                      [](const std::string& event) { return event.starts_with("ranks "); }) == 2);
}

TEST_CASE("events: returns to a checkpoint, with or without an iteration that is left out") {
  const MadeUpRun run;
  const auto back = [](std::int64_t iteration, double ended_s, std::int64_t bad, std::int64_t rewinds) {
    return fmt::format(
        R"({{"iteration":{},"timestamp":"{}","rewinds":{},"bad_iteration":{},"resumed_iteration":{}}})"
        "\n",
        iteration, Stamp(kBegin + ended_s), rewinds, bad, iteration);
  };
  const std::string text = IterationLine(1, 0.5, "") + IterationLine(2, 1.0, "") + back(2, 3.0, 5, 0) +
                           back(2, 6.0, 5, 1) + IterationLine(6, 7.0, "");
  const RunReader reader = ReaderOfEvents(run, text);
  const std::vector<std::string> texts = TextsOf(reader.view());
  const auto holds = [&](const char* event) { return std::count(texts.begin(), texts.end(), event) == 1; };
  CHECK(holds("rewind 2 at 3.00 for 0.00: back from iteration 5"));
  CHECK(holds("rewind 2 at 6.00 for 0.00: back from iteration 5 (rewind 1)"));
  CHECK(reader.view().returns == 2);
  // The time that it took, with what was gone back over, is no training.
  CHECK(holds("interruption 2 at 1.00 for 5.50: resumed after 5.5 s"));
  CHECK(reader.view().last.iteration == 6);
}

TEST_CASE("events: a checkpoint that could not be written, by the iteration that it was of") {
  const MadeUpRun run;
  std::string text = IterationLine(1, 0.5, "") + IterationLine(2, 1.0, "");
  text += fmt::format(R"({{"iteration":2,"timestamp":"{}","unsaved_iteration":1,"save_failures":1}})",
                      Stamp(kBegin + 2)) +
          "\n";
  const RunReader reader = ReaderOfEvents(run, text);
  CHECK(TextsOf(reader.view()) ==
        std::vector<std::string>{"start 1 at 0.00 for 0.00: first iteration",
                                 "not saved 1 at 2.00 for 0.00: the checkpoint could not be written"});
}

TEST_CASE("events: iterations without an update in a row are one, and numbers that are not finite one") {
  const MadeUpRun run;
  std::string text = IterationLine(1, 0.5, R"(,"skipped_iterations":1)");
  text += IterationLine(2, 1.0, R"(,"skipped_iterations":2)");
  text += IterationLine(3, 1.5, R"(,"skipped_iterations":2)");
  text += IterationLine(4, 2.0, R"(,"skipped_iterations":3)");
  text += IterationLine(5, 2.5, R"(,"skipped_iterations":3,"nan_iterations":1)");
  text += IterationLine(6, 3.0, R"(,"skipped_iterations":3,"nan_iterations":1)");
  const RunReader reader = ReaderOfEvents(run, text);
  CHECK(TextsOf(reader.view()) ==
        std::vector<std::string>{"start 1 at 0.00 for 0.00: first iteration",
                                 "skipped 1 at 0.00 for 1.00: 2 iterations without an update",
                                 "skipped 4 at 1.50 for 0.50: 1 iteration without an update",
                                 "not finite 5 at 2.50 for 0.00: loss or gradient norm"});
  CHECK(reader.view().skipped_stretches == 2);
}

TEST_CASE("events: a resume that a record tells of is one, however short") {
  const MadeUpRun run;
  const std::string before = IterationLine(1, 0.5, "") + IterationLine(2, 1.0, "");
  const RunReader told = ReaderOfEvents(run, before + IterationLine(3, 3.5, R"(,"resumed_iteration":2)"));
  CHECK(TextsOf(told.view()) ==
        std::vector<std::string>{"start 1 at 0.00 for 0.00: first iteration",
                                 "interruption 2 at 1.00 for 2.00: resumed after 2.0 s"});
  const RunReader silent = ReaderOfEvents(run, before + IterationLine(3, 3.5, ""));
  CHECK(EventsOf(silent.view()).size() == 1);
}

TEST_CASE("events: without times, and of no file at all") {
  const MadeUpRun run;
  CHECK(EventsOf(ReaderOfEvents(run, "").view()).empty());
  const RunReader reader = ReaderOfEvents(run,
                                          "{\"iteration\":1,\"loss\":5,\"elapsed_ms\":300}\n"
                                          "{\"iteration\":1,\"validation_loss\":null,\"elapsed_ms\":20}\n"
                                          "{\"iteration\":2,\"save_seconds\":3}\n");
  CHECK(TextsOf(reader.view()) ==
        std::vector<std::string>{
            "start 1 at -1.00 for 0.00: first iteration", "evaluation 1 at -1.00 for 0.02: validation loss –",
            "checkpoint 2 at -1.00 for 3.00: training stood still for 3.0 s, whole on disk after 3.0 s"});
}

TEST_CASE("events: faults that cannot be read are a note, and of many the newest are kept") {
  const MadeUpRun run;
  std::string text = "no JSON\n[1]\n{\"fault\":7}\n";
  for (int i = 1; i <= 300; ++i) text += fmt::format("{{\"fault\":\"f{}\",\"iteration\":{}}}\n", i, i);
  run.Write("faults.jsonl", text);
  RunReader reader = ReaderOfEvents(run, "");
  REQUIRE(reader.view().notes.size() == 1);
  CHECK(reader.view().notes[0] == run.folder + "/faults.jsonl: 3 lines that are no fault");
  CHECK(reader.view().faults == 300);
  REQUIRE(reader.view().fault_records.size() == RunView::kMostRecords);
  CHECK(reader.view().fault_records.front().fault == "f45");
  CHECK(reader.view().fault_records.back().iteration == 300);
  reader.Refresh(RunReader::kAllBytes);
  CHECK(reader.view().faults == 300);
}

}  // namespace engine::view

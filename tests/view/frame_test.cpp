// Frames as golden files: ENGINE_UPDATE_GOLDEN=1 writes them anew. tests/cli/watch_screens.py shows the same ones through a terminal.
#include "engine/view/frame.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/view/words.h"
#include "tests/view/made_up_run.h"

namespace engine::view {
namespace {

using testing::MadeUpRun;
using testing::MetricsText;

// ETAs name times of the day.
struct InUtc {
  InUtc() {
    setenv("TZ", "UTC", 1);
    tzset();
  }
  ~InUtc() {
    unsetenv("TZ");
    tzset();
  }
};

RunReader ReaderOf(const MadeUpRun& run, const std::string& metrics) {
  run.Write("metrics.jsonl", metrics);
  run.MakeOld();
  absl::StatusOr<RunReader> reader = RunReader::Open(run.folder);
  REQUIRE(reader.ok());
  reader->Refresh(RunReader::kAllBytes);
  return *std::move(reader);
}

std::string TextOf(const std::vector<Line>& lines, const FrameOptions& options) {
  std::string text;
  for (const std::string& line : Render(lines, {.columns = options.columns, .ascii = options.ascii})) {
    CHECK(ColumnsOf(line) <= options.columns);
    text += line + "\n";
  }
  return text;
}

void CheckGolden(const std::string& name, const std::string& text) {
  const std::string path = std::string(ENGINE_SOURCE_DIR) + "/tests/view/golden/" + name + ".txt";
  if (std::getenv("ENGINE_UPDATE_GOLDEN") != nullptr) data::WriteFile(path, text);
  CAPTURE(path);
  CHECK(text == data::ReadFile(path));
}

// "… iteration 5 …" → that line; empty where there is none.
std::string LineWith(const std::string& text, const std::string& part) {
  const std::size_t at = text.find(part);
  if (at == std::string::npos) return "";
  const std::size_t begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

}  // namespace

TEST_CASE("frame: a run that goes on, as golden files") {
  const InUtc utc;
  const MadeUpRun run;
  const MetricsText metrics = MetricsText().RunTo(25).Pause(60).RunTo(60);
  const RunReader reader = ReaderOf(run, metrics.text());
  const double now = metrics.now() + 3;
  const FrameOptions wide{.columns = 120, .rows = 40, .now_unix_s = now};
  CheckGolden("running-120x40", TextOf(RunFrame(reader.view(), wide), wide));
  const FrameOptions narrow{.columns = 80, .rows = 24, .now_unix_s = now};
  const std::string text = TextOf(RunFrame(reader.view(), narrow), narrow);
  CheckGolden("running-80x24", text);
  CHECK(std::count(text.begin(), text.end(), '\n') <= 24);
  const FrameOptions ascii{.columns = 80, .rows = 24, .now_unix_s = now, .ascii = true};
  const std::string plain = TextOf(RunFrame(reader.view(), ascii), ascii);
  CheckGolden("running-80x24-ascii", plain);
  CHECK(std::all_of(plain.begin(), plain.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
}

TEST_CASE("frame: every size of terminal gets no more than it holds") {
  const MadeUpRun run;
  const RunReader reader = ReaderOf(run, MetricsText().RunTo(60).text());
  for (std::size_t columns = 1; columns <= 200; columns += 3) {
    for (const std::size_t rows : {1, 2, 5, 20, 24, 80}) {
      const FrameOptions options{.columns = columns, .rows = rows};
      CHECK(RunFrame(reader.view(), options).size() <= rows);
      TextOf(RunFrame(reader.view(), options), options);
      CHECK(TableFrame({&reader.view(), &reader.view()}, options).size() <= rows);
      TextOf(TableFrame({&reader.view(), &reader.view()}, options), options);
    }
  }
}

TEST_CASE("frame: states and what is wrong stand above the curves") {
  const MadeUpRun run;
  const MetricsText metrics = MetricsText().RunTo(60);
  RunReader reader = ReaderOf(run, metrics.text());
  const auto text = [&](double now) {
    const FrameOptions options{.columns = 100, .now_unix_s = now};
    return TextOf(RunFrame(reader.view(), options), options);
  };
  CHECK(LineWith(text(metrics.now() + 3), "made-up").find("running  iteration 60 of 100, 60 %, 25 s left") !=
        std::string::npos);
  CHECK(LineWith(text(metrics.now() + 200), "made-up") ==
        "made-up  silent for 3 min 20 s  iteration 60 of 100, 60 %");
  run.Write(
      "outcome.json",
      R"({"outcome": "failed", "reason": "out of \u001b[2J memory", "host": "h1", "ended": "2026-09-21T14:14:20Z"})");
  reader.Refresh(RunReader::kAllBytes);
  CHECK(LineWith(text(0), "made-up") ==
        "made-up  failed  iteration 60 of 100, 60 %, ended 2026-09-21T14:14:20Z");
  CHECK(LineWith(text(0), "failed: ") == "failed: out of \\x1b[2J memory");
  CHECK(LineWith(text(0), "plan 0123").find("on h1") != std::string::npos);
}

TEST_CASE("frame: a terminal without room for the plot shows every number") {
  const MadeUpRun run;
  const RunReader reader = ReaderOf(run, MetricsText().RunTo(60).text());
  const FrameOptions all{.columns = 80};
  const std::size_t plot = 9;  // with its axis
  const FrameOptions low{.columns = 80, .rows = RunFrame(reader.view(), all).size() - plot};
  const std::string text = TextOf(RunFrame(reader.view(), low), low);
  CHECK(text.find("│") == std::string::npos);
  CHECK(LineWith(text, "ranks  ").starts_with("ranks "));
}

TEST_CASE("frame: the newest checkpoint, with or without a record, and its age while the run goes on") {
  const MadeUpRun run;
  const MetricsText metrics = MetricsText().RunTo(60);
  RunReader reader = ReaderOf(run, metrics.text());
  const auto checkpoint = [&] {
    reader.Refresh(RunReader::kAllBytes);
    const FrameOptions options{.columns = 120, .now_unix_s = metrics.now() + 3};
    return LineWith(TextOf(RunFrame(reader.view(), options), options), "checkpoint  ");
  };
  CHECK(checkpoint() == "checkpoint     iteration 50, 9.0 s ago, in 2.0 s; 1 kept");
  std::filesystem::create_directory(run.folder + "/checkpoints/.writing-iteration_0000060-12");
  CHECK(checkpoint() ==
        "checkpoint     iteration 50, 9.0 s ago, in 2.0 s; 1 kept; iteration 60 is being written");
  run.Write("outcome.json", R"({"outcome": "failed", "reason": "lost a host", "retryable": true})");
  CHECK(checkpoint() == "checkpoint     iteration 50, in 2.0 s; 1 kept");
  const FrameOptions options{.columns = 80};
  CHECK(LineWith(TextOf(RunFrame(reader.view(), options), options), "failed: ") ==
        "failed: lost a host (another try may go well)");
  std::filesystem::create_directory(run.folder + "/checkpoints/iteration_0000060");
  CHECK(checkpoint() == "checkpoint     iteration 60; 2 kept");
}

TEST_CASE("frame: how much of a long file is read, and iterations without an update") {
  const MadeUpRun run;
  const std::string skipped =
      R"({"iteration":1,"loss":1,"loss_scale":1024,"skipped_iterations":1,"elapsed_ms":500})"
      "\n";
  run.Write("metrics.jsonl", skipped + std::string(std::size_t{3} << 20, '\n'));
  absl::StatusOr<RunReader> reader = RunReader::Open(run.folder);
  REQUIRE(reader.ok());
  const FrameOptions options{.columns = 80};
  reader->Refresh(1);
  CHECK(LineWith(TextOf(RunFrame(reader->view(), options), options), "reading metrics.jsonl: ") != "");
  reader->Refresh(RunReader::kAllBytes);
  const std::string text = TextOf(RunFrame(reader->view(), options), options);
  CHECK(text.find("reading metrics.jsonl") == std::string::npos);
  CHECK(LineWith(text, "loss scale").starts_with("loss scale     1024, 1 iterations skipped"));
}

TEST_CASE("frame: the last evaluation is shown, also where its loss is not finite") {
  const InUtc utc;
  const MadeUpRun run;
  const FrameOptions options = {.columns = 100, .rows = 40, .now_unix_s = testing::kBegin + 60};
  const auto row = [&](const std::string& more) {
    const std::string text = MetricsText().RunTo(10).text() + more;
    return LineWith(TextOf(RunFrame(ReaderOf(run, text).view(), options), options), "validation");
  };
  const std::string good = R"({"iteration":4,"validation_loss":3.5,"elapsed_ms":20})"
                           "\n";
  const std::string bad = R"({"iteration":8,"validation_loss":null,"elapsed_ms":20})"
                          "\n";
  CHECK(row(good).ends_with("3.5000 at iteration 4"));
  CHECK(row(good + bad).ends_with("not finite at iteration 8, lowest 3.5000 at 4"));
  CHECK(row(bad).ends_with("not finite at iteration 8"));
}

TEST_CASE("frame: a run that went back to a checkpoint says so") {
  const InUtc utc;
  const MadeUpRun run;
  const std::string before = MetricsText().RunTo(30).text();
  const FrameOptions options = {.columns = 100, .rows = 40, .now_unix_s = testing::kBegin + 60};
  const auto frame = [&](const std::string& text) {
    return TextOf(RunFrame(ReaderOf(run, text).view(), options), options);
  };
  CHECK(LineWith(frame(before), "went back").empty());
  const std::string back = R"({"iteration":30,"rewinds":1,"bad_iteration":37})";
  CHECK(LineWith(frame(before + back + "\n"), "went back")
            .ends_with("1 time; the last from iteration 37 to 30"));
  CHECK(LineWith(frame(before + back + "\n" + back + "\n"), "went back")
            .ends_with("2 times; the last from iteration 37 to 30"));
}

TEST_CASE("frame: a table has no column that says nothing, and clocks tell the day where it is another") {
  const InUtc utc;
  const MadeUpRun run;
  const RunReader reader = ReaderOf(run, MetricsText().RunTo(10).text());
  const FrameOptions options{.columns = 200};
  const std::string head = TextOf(TableFrame({&reader.view()}, options), options).substr(0, 200);
  CHECK(head.find("MFU") != std::string::npos);
  CHECK(head.find("validation") == std::string::npos);
  constexpr double kDay_s = 86400;
  CHECK(ClockText(testing::kBegin, testing::kBegin + 60) == "14:13");
  CHECK(ClockText(testing::kBegin - kDay_s, testing::kBegin) == "2026-09-20 14:13");
  CHECK(ClockText(testing::kBegin - 365 * kDay_s, testing::kBegin) == "2025-09-21 14:13");
}

TEST_CASE("frame: several runs as a table, as golden files") {
  const InUtc utc;
  const MadeUpRun first("first"), second("a-second-run-with-a-name-that-is-longer-than-others"),
      third("third");
  const MetricsText metrics = MetricsText().RunTo(60);
  const RunReader a = ReaderOf(first, metrics.text());
  RunReader b = ReaderOf(second, MetricsText().RunTo(100).text());
  second.Write("outcome.json", R"({"outcome": "finished", "iteration": 100, "iterations": 100})");
  b.Refresh(RunReader::kAllBytes);
  third.Write("outcome.json", R"({"outcome": "failed", "reason": "no data"})");
  const RunReader c = ReaderOf(third, "");
  const std::vector<const RunView*> views = {&a.view(), &b.view(), &c.view()};
  for (const std::size_t columns : {80, 160}) {
    const FrameOptions options{.columns = columns, .now_unix_s = metrics.now() + 3};
    CheckGolden(fmt::format("table-{}", columns), TextOf(TableFrame(views, options), options));
  }
}

TEST_CASE("frame: a rank that takes longer than the others is named") {
  const MadeUpRun run;
  std::string text = MetricsText().RunTo(3).text();
  const FrameOptions options{.columns = 100};  // for a bar of each rank behind the longest text
  const auto ranks = [&] {
    const RunReader reader = ReaderOf(run, text);
    for (const Line& line : RunFrame(reader.view(), options)) {
      if (line[0].text.starts_with("ranks")) return line;
    }
    return Line{};
  };
  CHECK(ranks()[1].text == "rank 2 busy longest: 480 ms, 1.18 × median ");
  CHECK(ranks()[1].style == Style::kPlain);
  CHECK(ranks()[2].text == "▇▇█▇");
  text += R"({"iteration":4,"loss":1,"rank_busy_ms":[100,null,300,100]})"
          "\n";
  CHECK(ranks()[1].text == "rank 2 busy longest: 300 ms, 3.00 × median; not known: rank 1 ");
  CHECK(ranks()[1].style == Style::kWarning);
  CHECK(ranks()[2].text == "▃ █▃");
  // Ranks that are gone, also behind the slowest.
  text += R"({"iteration":5,"loss":1,"rank_busy_ms":[100,110,null,null]})"
          "\n";
  CHECK(ranks()[1].text == "rank 1 busy longest: 110 ms, 1.05 × median; not known: rank 2 and 1 more ");
  CHECK(ranks()[1].style == Style::kWarning);
  text += R"({"iteration":6,"loss":1,"rank_busy_ms":[100,null]})"
          "\n";
  CHECK(ranks()[1].text == "rank 0 busy 100 ms; not known: rank 1 ");
  text += R"({"iteration":7,"loss":1,"rank_busy_ms":[null,null]})"
          "\n";
  CHECK(ranks().empty());
}

TEST_CASE("frame: temperatures and clocks of GPUs, of several the outermost") {
  const MadeUpRun run;
  std::string text;
  const auto gpus = [&] {
    const RunReader reader = ReaderOf(run, text);
    for (const Line& line : RunFrame(reader.view(), FrameOptions{})) {
      if (line[0].text.starts_with("GPUs")) return line[1].text;
    }
    return std::string();
  };
  text = R"({"iteration":1,"loss":1,"rank_clock_mhz":[null,null],"rank_temperature_c":[null,null]})"
         "\n";
  CHECK(gpus().empty());
  text += R"({"iteration":2,"loss":1,"rank_clock_mhz":[1980,null,1410],"rank_temperature_c":[61,null,88]})"
          "\n";
  CHECK(gpus() == "61 to 88 °C, rank 2 hottest; 1410 to 1980 MHz, rank 2 slowest");
  text += R"({"iteration":3,"loss":1,"rank_clock_mhz":[1755],"rank_temperature_c":[63]})"
          "\n";
  CHECK(gpus() == "63 °C; 1755 MHz");
}

}  // namespace engine::view

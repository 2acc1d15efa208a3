#include "engine/view/page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/view/made_up_run.h"

namespace engine::view {
namespace {

using testing::MadeUpRun;
using testing::MetricsText;

RunReader PageReader(const MadeUpRun& run, const std::string& metrics) {
  run.Write("metrics.jsonl", metrics);
  absl::StatusOr<RunReader> reader = RunReader::Open(run.folder);
  REQUIRE(reader.ok());
  reader->Refresh(RunReader::kAllBytes);
  return *std::move(reader);
}

std::string PageOf(const std::vector<const RunView*>& views) {
  return HtmlOf(ReportOf(ReportedRuns(views), testing::kBegin));
}

bool Has(const std::string& page, const std::string& part) {
  if (page.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "'");
  return false;
}

std::size_t CountIn(const std::string& page, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) ++count;
  return count;
}

std::string CellOf(const std::string& run, const std::string& number, const std::string& text) {
  return fmt::format("data-run=\"{}\" data-number=\"{}\">{}</td>", run, number, text);
}

}  // namespace

TEST_CASE("page: one run, whole by itself, with the numbers of its files") {
  const MadeUpRun run;
  run.Write("outcome.json", R"({"outcome": "finished", "iteration": 100, "iterations": 100, "host": "h1"})");
  run.Write("resolved.toml", "[model]\nlayers = 2  # a.toml:1:1\n");
  run.Write("checkpoints/iteration_0000050/rank_00000.h5", std::string(2048, 'x'));
  const RunReader reader = PageReader(run, MetricsText().RunTo(30).Pause(100).RunTo(100).text());
  const std::string page = PageOf({&reader.view()});
  for (const char* outside : {"http", "src=", "<script", "<link", "@import", "url(h", "<iframe"}) {
    CAPTURE(outside);
    CHECK(page.find(outside) == std::string::npos);
  }
  CHECK(Has(page, "<title>made-up</title>"));
  CHECK(Has(page, CellOf("made-up", "state", "finished")));
  CHECK(Has(page, CellOf("made-up", "iteration", "100 of 100")));
  CHECK(Has(page, CellOf("made-up", "loss", "2.0202")));
  CHECK(Has(page, CellOf("made-up", "lowest", "2.1202 at 100")));
  CHECK(Has(page, CellOf("made-up", "tokens", "12.80K")));
  CHECK(Has(page, CellOf("made-up", "layout", "4 ranks: dp 2 · pp 2")));
  CHECK(Has(page, CellOf("made-up", "host", "h1")));
  // 50 s of iterations, of which 0.05 s wait; 5 evaluations of 1 s, 4 checkpoints of 2 s, an interruption.
  CHECK(Has(page, CellOf("made-up", "goodput", "30.6 %")));
  CHECK(Has(page, CellOf("made-up", "training", "50 s (30.6 %)")));
  CHECK(Has(page, CellOf("made-up", "evaluation", "5.0 s (3.1 %)")));
  CHECK(Has(page, CellOf("made-up", "saving", "8.0 s (4.9 %)")));
  CHECK(Has(page, CellOf("made-up", "data", "50 ms (0.0 %)")));
  CHECK(Has(page, CellOf("made-up", "interruptions", "1 min 40 s (61.3 %)")));
  CHECK(Has(page, CellOf("made-up", "all", "2 min 43 s")));
  CHECK(Has(
      page,
      "<td>2026-09-21 14:13:38 UTC</td><td>interruption</td><td>30</td><td>1 min 40 s</td><td>resumed after "
      "1 min 40 s</td>"));
  CHECK(Has(page, CellOf("made-up", "predicted iteration", "450 ms")));
  CHECK(Has(page, CellOf("made-up", "measured iteration", "500 ms, median")));
  CHECK(Has(page, CellOf("made-up", "predicted MFU", "40.0 %")));
  CHECK(Has(page, CellOf("made-up", "measured MFU", "35.0 %, mean") + "<td>0.875</td>"));
  CHECK(Has(page, "<th scope=\"row\">total</th><td>8.56 KiB</td><td>8.56 KiB</td>"));
  CHECK(Has(page, "<p>Measured: 1.00 MiB in use on rank 0's GPU"));
  CHECK(Has(page,
            "<th scope=\"row\">50</th><td>2026-09-21 14:15:31 UTC</td><td>2.0 s</td><td>2.0 s</td><td>2.00 "
            "KiB</td>"));
  CHECK(Has(page, "<td>deleted</td>"));
  CHECK(Has(page, "layers = 2  # a.toml:1:1"));
  CHECK(CountIn(page, "Settings that differ") == 0);
  CHECK(CountIn(page, "<figure>\n<h3>Loss over ") == 3);
  CHECK(CountIn(page, "<h3>Loss scale</h3>") == 0);  // it never moves
  CHECK(CountIn(page, "<circle ") == 15);            // evaluations
  CHECK(Has(page, "made-up: from 35 to 35. "));      // MFU, in %
  CHECK(CountIn(page, ">10K</text>") == 1);          // the axis of tokens
  // The bar of 480 units: behind 49.95 s of training and 5 s of evaluations, of 163 s.
  CHECK(Has(page, "<rect class=\"c1\" style=\"fill:var(--c)\" x=\"147.09\""));
  CHECK(Has(page, "<rect class=\"c2\" style=\"fill:var(--c)\" x=\"161.82\""));
}

TEST_CASE("page: several runs beside each other, with the settings that differ") {
  const MadeUpRun first("a"), second("b");
  std::string other = testing::kRecipe;
  other.replace(other.find("1e-2"), 4, "3e-3");
  second.Write("plan.json", testing::PlanJson(other));
  const RunReader a = PageReader(first, MetricsText().RunTo(100).text());
  const RunReader b = PageReader(second, MetricsText().RunTo(50).text());
  const std::string page = PageOf({&a.view(), &b.view()});
  CHECK(Has(page, "<title>2 runs</title>"));
  CHECK(Has(page, "<li class=\"c0\"><i></i>a</li><li class=\"c1\"><i></i>b</li>"));
  CHECK(Has(page, CellOf("b", "iteration", "50 of 100")));
  CHECK(
      Has(page,
          "<code>optimizer.learning_rate</code></th><td><code>0.01</code></td><td><code>0.003</code></td>"));
  CHECK(CountIn(page, "<code>optimizer.") == 1);
  // Runs of one name are told apart by their folders.
  const MadeUpRun again("a");
  const RunReader c = PageReader(again, "");
  const std::vector<ReportedRun> alike = ReportedRuns({&a.view(), &c.view()});
  const std::string parent = std::filesystem::path(first.parent.path()).parent_path().string() + "/";
  CHECK(parent + alike[0].name == first.folder);
  CHECK(parent + alike[1].name == again.folder);
  second.Write("plan.json", "{}");
  const RunReader d = PageReader(second, "");
  CHECK(Has(PageOf({&a.view(), &d.view()}), "Not compared: the recipe of b is not known."));
}

TEST_CASE("page: whatever stands in the files is text") {
  const std::string attack = "<script>alert(1)</script>\\\"'&";
  const MadeUpRun run("<img src=x onerror=1>");
  std::string plan = testing::PlanJson();
  plan.replace(plan.find("fp32"), 4, attack);
  plan.replace(plan.find("0123456789abcdef"), 8, attack);
  run.Write("plan.json", plan);
  run.Write("origin.json", "{\"recipe\": \"" + attack + "\"}");
  run.Write("resolved.toml", attack);
  run.Write("outcome.json", "{\"outcome\": \"failed\", \"reason\": \"" + attack + "\", \"host\": \"" +
                                attack + "\", \"ended\": \"" + attack + "\"}");
  const RunReader reader = PageReader(run, MetricsText().RunTo(30).text() + attack + "\n");
  const std::string page = PageOf({&reader.view()});
  CHECK(page.find("<script") == std::string::npos);
  CHECK(page.find("<img") == std::string::npos);
  CHECK(CountIn(page, "&lt;script&gt;alert(1)&lt;/script&gt;") == 8);
  CHECK(Has(page, "&lt;img src=x onerror=1&gt;"));
}

TEST_CASE("page: curves leave out what is large in the beginning, and bands reach to the extremes") {
  const MadeUpRun run;
  std::string text;
  for (int i = 1; i <= 1000; ++i)
    text += fmt::format("{{\"iteration\":{},\"loss\":{}}}\n", i, i == 1 ? 5000 : i % 2 == 1 ? 0 : 100);
  const RunReader reader = PageReader(run, text);
  const std::string page = PageOf({&reader.view()});
  CHECK(CountIn(page, "text-anchor=\"end\">5000</text>") == 0);
  CHECK(CountIn(page, "text-anchor=\"end\">0</text>") == 1);
  CHECK(CountIn(page, "text-anchor=\"end\">100</text>") == 1);
}

TEST_CASE("page: of many checkpoints and stages those are shown that fit, and it says so") {
  const MadeUpRun run;
  std::string plan = testing::PlanJson();
  const std::size_t stages = plan.find("\"stages\": [") + 11;
  const std::string stage = plan.substr(stages, plan.find("}}, {", stages) + 4 - stages);
  for (int i = 0; i < 15; ++i) plan.insert(stages, stage + " ");
  run.Write("plan.json", plan);
  std::string text;
  for (int i = 1; i <= 25; ++i)
    text += fmt::format("{{\"iteration\":{},\"save_seconds\":{},\"stall_seconds\":1}}\n", i, 1 + i);
  const RunReader reader = PageReader(run, text);
  REQUIRE(reader.view().notes.empty());
  const std::string page = PageOf({&reader.view()});
  CHECK(Has(page, "<p class=\"note\">The newest 20 of 25 checkpoints.</p>"));
  CHECK(Has(page, "<th scope=\"row\">25</th><td>–</td><td>26 s</td><td>1.0 s</td><td>deleted</td>"));
  CHECK(Has(page, "<th scope=\"row\">6</th>"));
  CHECK(CountIn(page, "<th scope=\"row\">5</th>") == 0);
  CHECK(Has(page, "<th scope=\"col\">stage 15</th>"));
  CHECK(CountIn(page, "stage 16") == 0);
  CHECK(Has(page, "<p class=\"note\">And 1 more stages.</p>"));
}

TEST_CASE("page: a picture of events has those alone whose time is known, and reaches to the last record") {
  const MadeUpRun run;
  const RunReader reader = PageReader(run, MetricsText().RunTo(39).text());
  CHECK(
      Has(PageOf({&reader.view()}), "from 2026-09-21 14:13:20 UTC to 2026-09-21 14:13:42 UTC</figcaption>"));
  run.Write("faults.jsonl", R"({"fault":"a","iteration":1,"timestamp":1790000000})"
                            "\n"
                            R"({"fault":"b","iteration":2,"timestamp":1790000060})"
                            "\n");
  const RunReader old = PageReader(run, "{\"iteration\":1,\"loss\":1}\n{\"iteration\":2,\"loss\":1}\n");
  const std::string page = PageOf({&old.view()});
  CHECK(Has(page, "from 2026-09-21 14:13:20 UTC to 2026-09-21 14:14:20 UTC</figcaption>"));
  CHECK(CountIn(page, "text-anchor=\"end\">start</text>") == 0);
  CHECK(Has(page, "<td>–</td><td>start</td><td>1</td>"));
}

TEST_CASE("page: events over time, a lane a kind") {
  const MadeUpRun run;
  run.Write("outcome.json", R"({"outcome": "stopped", "iteration": 40, "ended": "2026-09-21T14:15:20Z"})");
  const RunReader reader = PageReader(run, MetricsText().RunTo(30).Pause(73).RunTo(40).text());
  const std::string page = PageOf({&reader.view()});
  CHECK(
      Has(page, "<figcaption>made-up, from 2026-09-21 14:13:20 UTC to 2026-09-21 14:15:20 UTC</figcaption>"));
  // 120 s are 378 units from 92 on. Lanes are 20 high: start, interruption, evaluation, checkpoint, end.
  CHECK(Has(page,
            "text-anchor=\"end\">start</text><path class=\"c0\" style=\"fill:var(--c)\" d=\"M92.0 "
            "9h2.0v14H92.0z\""));
  CHECK(Has(page,
            "text-anchor=\"end\">interruption</text><path class=\"c1\" style=\"fill:var(--c)\" "
            "d=\"M148.7 29h229.9v14H148.7z\""));
  CHECK(Has(page,
            "text-anchor=\"end\">evaluation</text><path class=\"c6\" style=\"fill:var(--c)\" "
            "d=\"M123.5 49h3.2v14H123.5zM394.4 49h3.2v14H394.4z\""));
  CHECK(Has(page,
            "text-anchor=\"end\">checkpoint</text><path class=\"c7\" style=\"fill:var(--c)\" "
            "d=\"M134.5 69h6.3v14H134.5z\""));
  CHECK(Has(page,
            "text-anchor=\"end\">end</text><path class=\"c2\" style=\"fill:var(--c)\" "
            "d=\"M468.0 89h2.0v14H468.0z\""));
  CHECK(CountIn(page, ">fault</text>") == 0);
  CHECK(Has(page, "text-anchor=\"middle\">seconds</text>"));
  CHECK(Has(page, "<td>2026-09-21 14:13:33 UTC</td><td>checkpoint</td><td>25</td><td>2.0 s</td>"));
  CHECK(Has(page, "<td>2026-09-21 14:15:20 UTC</td><td>end</td><td>40</td><td>–</td><td>stopped</td>"));
  CHECK(Has(page, "<tr><th scope=\"row\">made-up</th><td>40</td><td>2.5060</td></tr>"));  // evaluations
}

TEST_CASE("page: of many events the newest of each kind are listed") {
  const MadeUpRun run;
  const RunReader reader = PageReader(run, MetricsText().RunTo(1000).text());
  const std::string page = PageOf({&reader.view()});
  CHECK(CountIn(page, "<td>evaluation</td>") == 20);
  CHECK(CountIn(page, "<td>checkpoint</td>") == 20);
  CHECK(CountIn(page, "<td>start</td>") == 1);
  CHECK(Has(page, "<td>evaluation</td><td>620</td>"));
  CHECK(CountIn(page, "<td>evaluation</td><td>600</td>") == 0);
}

TEST_CASE("page: a map of the ranks by time, in the colours of their busy times") {
  const MadeUpRun run;
  std::string text = R"({"iteration":1,"loss":1,"rank_busy_ms":[100,100,100,100]})"
                     "\n";
  for (int i = 2; i <= 4; ++i)
    text += fmt::format(R"({{"iteration":{},"loss":1,"rank_busy_ms":[100,100,{},{}]}})"
                        "\n",
                        i, i == 4 ? "null" : "85", i == 4 ? 250 : 130);
  const RunReader reader = PageReader(run, text);
  const std::string page = PageOf({&reader.view()});
  CHECK(Has(page, "<h2>Ranks</h2>"));
  CHECK(Has(page, "<figcaption>made-up</figcaption>"));
  // Columns are 106 units wide, rows 18 high.
  CHECK(Has(page, "<path class=\"cells h0\" stroke-width=\"18.00\" d=\"M152.0 53.0H364.0\"/>"));
  CHECK(Has(page,
            "<path class=\"cells h2\" stroke-width=\"18.00\" "
            "d=\"M46.0 17.0H470.0M46.0 35.0H470.0M46.0 53.0H152.0M46.0 71.0H152.0\"/>"));
  CHECK(Has(page, "<path class=\"cells h5\" stroke-width=\"18.00\" d=\"M152.0 71.0H364.0\"/>"));
  CHECK(Has(page, "<path class=\"cells h6\" stroke-width=\"18.00\" d=\"M364.0 71.0H470.0\"/>"));
  CHECK(CountIn(page, "class=\"cells") == 4);
  CHECK(Has(page, "y=\"75.0\" text-anchor=\"end\">3</text>"));
  CHECK(Has(page, "<text x=\"470.0\" y=\"94.0\" text-anchor=\"end\">4</text>"));
  CHECK(Has(page,
            "<tr><th scope=\"row\">made-up</th><td>3</td><td>1.52</td><td>2.50</td><td>75.0 %</td></tr>\n"
            "<tr><th scope=\"row\">made-up</th><td>0</td><td>1.00</td><td>1.00</td><td>25.0 %</td></tr>"));
  CHECK(Has(page, "and in which the rank's time is known. Not in all: made-up: rank 2 in 3 of 4."));
  const RunReader alone = PageReader(run, R"({"iteration":1,"loss":1,"rank_busy_ms":[100]})");
  CHECK(CountIn(PageOf({&alone.view()}), "<h2>Ranks</h2>") == 0);
}

TEST_CASE("page: the hottest GPUs, where GPUs tell it") {
  const MadeUpRun run;
  const RunReader reader = PageReader(
      run, R"({"iteration":1,"loss":1,"rank_clock_mhz":[1980,1980,null],"rank_temperature_c":[61,70,null]})"
           "\n"
           R"({"iteration":2,"loss":1,"rank_clock_mhz":[1980,1410,null],"rank_temperature_c":[63,88,null]})"
           "\n");
  const std::string page = PageOf({&reader.view()});
  CHECK(Has(page, "<h2>GPUs</h2>"));
  CHECK(Has(
      page,
      "<tr><th scope=\"row\">made-up</th><td>1</td><td>79</td><td>88</td><td>1695</td><td>1410</td></tr>\n"
      "<tr><th scope=\"row\">made-up</th><td>0</td><td>62</td><td>63</td><td>1980</td><td>1980</td></tr>"));
  const RunReader without = PageReader(run, R"({"iteration":1,"loss":1})");
  CHECK(CountIn(PageOf({&without.view()}), "<h2>GPUs</h2>") == 0);
}

TEST_CASE("page: the map of many ranks stays small, and says what shares a row") {
  const MadeUpRun run;
  std::string text;
  for (int i = 1; i <= 300; ++i) {
    std::string busy;
    for (int rank = 0; rank < 1000; ++rank)
      busy += fmt::format("{}{}", rank == 0 ? "" : ",", 50 + (i * rank) % 101);
    if (i == 1) busy = "1,1";
    text += fmt::format(R"({{"iteration":{},"loss":1,"rank_busy_ms":[{}]}})"
                        "\n",
                        i, busy);
  }
  const RunReader reader = PageReader(run, text);
  const std::string page = PageOf({&reader.view()});
  CHECK(
      Has(page,
          "<figcaption>made-up: 1000 ranks, 16 neighbours a row; before iteration 2 there were more or fewer "
          "ranks</figcaption>"));
  CHECK(Has(page, "text-anchor=\"end\">64</text>"));  // each fourth row has a label
  CHECK(CountIn(page, "text-anchor=\"end\">16</text>") == 0);
  CHECK(CountIn(page, "<td>") >= 5);
  // Eight maps of at most 65 columns each: 299 iterations in 75 columns of 4 are joined two by two.
  const std::string eight = PageOf(std::vector<const RunView*>(8, &reader.view()));
  CHECK(CountIn(eight, "16 neighbours a row") == 8);
  CHECK(CountIn(page, "H51.7") > 0);
  CHECK(CountIn(eight, "H51.7") == 0);
  CHECK(CountIn(eight, "H57.2") > 0);
}

TEST_CASE("page: a long run's page is small, and a run without records has one") {
  const MadeUpRun run;
  const RunReader empty = PageReader(run, "");
  CHECK(Has(PageOf({&empty.view()}), "No iteration is recorded."));
  const RunReader reader = PageReader(run, MetricsText().RunTo(20'000).text());
  const std::vector<const RunView*> views(8, &reader.view());
  CHECK(PageOf(views).size() < 2'000'000);
}

}  // namespace engine::view

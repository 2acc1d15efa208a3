// Studies through the program: run, interrupted, resumed; the page's numbers against metrics.jsonl.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "tests/cli/run_command.h"
#include "tests/cli/tiny_run.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

struct TinyStudy : TinyRun {
  explicit TinyStudy(
      const std::string& variants =
          "[variants.plain]\n[variants.gated]\nmodel.mlp = { activation = \"swiglu\", hidden = 24 }\n",
      const std::string& head = "") {
    data::WriteFile(study,
                    "[study]\nbase = \"tiny.toml\"\ntitle = \"Tiny\"\nseeds = [1, 2]\n" + head + variants);
  }
  std::string Command(const std::string& more = "") const {
    return "ablate " + study + " --out " + out +
           " --set evaluation.interval=4 --set evaluation.iterations=2 " + more;
  }

  std::string study = folder / "study.toml";
};

// What a run's metrics.jsonl says, read by nothing of the engine.
struct Metrics {
  explicit Metrics(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("validation_loss")) {
        validation = json["validation_loss"];
      } else if (json.contains("loss")) {
        loss.push_back(json["loss"]);
        seconds.push_back(json["elapsed_ms"].get<double>() / 1e3);
      }
    }
  }
  double validation = NAN;
  std::vector<double> loss, seconds;
};

std::vector<std::string> Cells(const std::string& page, const std::string& attributes) {
  std::vector<std::string> cells;
  const std::regex cell("<td " + attributes + ">([^<]*)</td>");
  for (std::sregex_iterator it(page.begin(), page.end(), cell), end; it != end; ++it)
    cells.push_back((*it)[1]);
  return cells;
}

double Mean(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number;
  return sum / static_cast<double>(numbers.size());
}

// Every number of the page that comes from a run, for a study whose metric is the validation loss.
void CheckPage(const std::string& out, const std::vector<std::string>& variants,
               const std::vector<int>& seeds) {
  const std::string page = data::ReadFile(out + "/report.html");
  for (const char* outside : {"http", "src=", "<script", "<link", "@import"})
    CHECK(page.find(outside) == std::string::npos);
  for (const std::string& variant : variants) {
    CAPTURE(variant);
    std::vector<Metrics> runs;
    std::vector<double> finals, medians;
    for (const int seed : seeds) {
      runs.emplace_back(fmt::format("{}/variants/{}/seed-{}/run/metrics.jsonl", out, variant, seed));
      finals.push_back(runs.back().validation);
      CHECK(Cells(page, fmt::format("data-run=\"{}/seed-{}\" data-number=\"metric\"", variant, seed)) ==
            std::vector<std::string>{fmt::format("{:.4f}", runs.back().validation)});
      std::vector<double> sorted = runs.back().seconds;
      std::sort(sorted.begin(), sorted.end());
      medians.push_back(sorted[sorted.size() / 2]);
    }
    double squares = 0;
    for (const double final : finals) squares += std::pow(final - Mean(finals), 2);
    CHECK(Cells(page, "data-variant=\"" + variant + "\" data-number=\"mean\"") ==
          std::vector<std::string>{fmt::format("{:.4f} ± {:.4f}", Mean(finals),
                                               std::sqrt(squares / static_cast<double>(finals.size() - 1)))});
    CHECK(Cells(page, "data-variant=\"" + variant + "\" data-number=\"iteration\"") ==
          std::vector<std::string>{Mean(medians) < 1 ? fmt::format("{:.1f} ms", Mean(medians) * 1e3)
                                                     : fmt::format("{:.2f} s", Mean(medians))});
    const std::size_t length = runs[0].loss.size(), rows = std::min<std::size_t>(length, 10);
    std::vector<std::string> curve;
    curve.reserve(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      std::vector<double> of_runs;
      of_runs.reserve(runs.size());
      for (const Metrics& run : runs) {
        of_runs.push_back(Mean({run.loss.begin() + static_cast<std::ptrdiff_t>(row * length / rows),
                                run.loss.begin() + static_cast<std::ptrdiff_t>((row + 1) * length / rows)}));
      }
      curve.push_back(fmt::format("{:.4f}", Mean(of_runs)));
    }
    CHECK(Cells(page, "data-variant=\"" + variant + "\" data-number=\"curve\"") == curve);
  }
}

// A study, which gets the signal once `path` has something in it: a run's metrics, its first iteration.
int InterruptStudy(const TinyStudy& tiny, const std::string& path, int signal_number) {
  return Interrupt(
      tiny.Command(),
      [&] {
        std::error_code none_yet;
        const std::uintmax_t size = fs::file_size(path, none_yet);
        return !none_yet && size > 0;
      },
      signal_number);
}

}  // namespace

TEST_CASE("ablate: runs every variant with every seed and writes what came of it") {
  const TinyStudy tiny;
  const ProgramResult first = RunProgram(tiny.Command("--jobs 2"));
  REQUIRE_MESSAGE(first.exit_code == 0, first.output);
  CHECK(Contains(first.output, "2 variants × 2 seeds = 4 runs, all checked\n"));
  CheckPage(tiny.out, {"plain", "gated"}, {1, 2});
  CHECK(
      Contains(data::ReadFile(tiny.out + "/variants/gated/diff.md"), "| `model.mlp.hidden` | `32` | `24` |"));
  CHECK(Contains(data::ReadFile(tiny.out + "/variants/gated/seed-2/recipe.toml"), "activation = \"swiglu\""));
  CHECK(Contains(data::ReadFile(tiny.out + "/variants/gated/seed-2/recipe.toml"), "seed = 2 "));
  const nlohmann::json results = nlohmann::json::parse(data::ReadFile(tiny.out + "/results.json"));
  CHECK(results["finished"] == 4);
  CHECK(results["variants"][1]["runs"][1]["peak_memory_bytes"] > 1'000'000);
  // The arena that is predicted is the one that the run allocates and logs.
  const nlohmann::json plan =
      nlohmann::json::parse(data::ReadFile(tiny.out + "/variants/gated/seed-1/run/plan.json"));
  CHECK(results["variants"][1]["arena_bytes"] == plan["stages"][0]["memory"]["total"]);
  CHECK(results["variants"][1]["plan"] == plan["hash"]);

  // Once more: nothing is trained, the page is the same.
  const std::string page = data::ReadFile(tiny.out + "/report.html");
  const ProgramResult again = RunProgram(tiny.Command());
  CHECK(again.exit_code == 0);
  CHECK(Contains(again.output, "4 runs, 4 of them finished before\n"));
  CHECK(again.output.find("started") == std::string::npos);
  CHECK((data::ReadFile(tiny.out + "/report.html") == page));

  // The study changes under its results.
  const ProgramResult changed = RunProgram(tiny.Command("--set optimizer.learning_rate=0.5"));
  CHECK(changed.exit_code == 1);
  CHECK(
      Contains(changed.output,
               "seed-1 was made with optimizer.learning_rate = 0.01, which is now 0.5; give another --out"));
}

// Two variants of one seed were asked the same: the study says of them what `engine diff` says of their runs.
TEST_CASE("ablate: variants of one seed are compared example by example, as diff compares their runs") {
  const TinyStudy tiny;
  data::WriteFile(tiny.study,
                  "[study]\nbase = \"tiny.toml\"\nseeds = [1]\n"
                  "[variants.slow]\n[variants.fast]\noptimizer.learning_rate = 3e-2\n");
  const ProgramResult study = RunProgram(
      tiny.Command("--set 'evaluation.tasks=[\"perplexity=" + tiny.folder / "text.jsonl" + "\"]'"));
  REQUIRE_MESSAGE(study.exit_code == 0, study.output);
  const nlohmann::json results = nlohmann::json::parse(data::ReadFile(tiny.out + "/results.json"));
  const std::string runs = tiny.out + "/variants/";
  const ProgramResult diff =
      RunProgram("diff --format json " + runs + "slow/seed-1/run " + runs + "fast/seed-1/run");
  const nlohmann::json tasks = nlohmann::json::parse(diff.output)["tasks"];
  REQUIRE(!tasks.empty());
  for (const nlohmann::json& task : tasks) {
    const std::string name = task["name"];
    CAPTURE(name);
    for (const nlohmann::json& of_study : results["variants"][1]["tasks"]) {
      if (of_study["name"] == name && task.contains("margin_95")) {
        CHECK(of_study["difference_margin_95"].get<double>() ==
              doctest::Approx(task["margin_95"].get<double>()).epsilon(1e-4));
      }
    }
  }
  for (const nlohmann::json& itself : results["variants"][0]["tasks"]) {
    if (itself.contains("difference_margin_95")) CHECK(itself["difference_margin_95"] == 0);
  }
}

TEST_CASE("ablate: killed, it goes on where it was, and what had finished is not run again") {
  const TinyStudy tiny;
  CHECK(InterruptStudy(tiny, tiny.out + "/variants/plain/seed-2/run/metrics.jsonl", SIGKILL) == -1);
  const std::string done = tiny.out + "/variants/plain/seed-1";
  REQUIRE(fs::exists(done + "/finished.json"));
  const std::string log = data::ReadFile(done + "/log.txt");
  const auto written = fs::last_write_time(done + "/run/metrics.jsonl");
  const ProgramResult rest = RunProgram(tiny.Command());
  REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
  CHECK(rest.output.find("plain, seed 1: started") == std::string::npos);
  CHECK(Contains(rest.output, "gated, seed 2: finished\n"));
  CHECK((data::ReadFile(done + "/log.txt") == log));
  CHECK((fs::last_write_time(done + "/run/metrics.jsonl") == written));
  CheckPage(tiny.out, {"plain", "gated"}, {1, 2});

  // The same as undisturbed.
  const TinyStudy other;
  REQUIRE(RunProgram(other.Command()).exit_code == 0);
  for (const char* run : {"plain/seed-2", "gated/seed-1"}) {
    const std::string path = std::string("/variants/") + run + "/run/metrics.jsonl";
    CHECK((Metrics(tiny.out + path).loss == Metrics(other.out + path).loss));
  }
}

TEST_CASE("ablate: the runs of a study that is killed die with it") {
  const TinyStudy tiny("[variants.long]\ntraining.iterations = 1000000\n");
  const std::string run = tiny.out + "/variants/long/seed-1/run";
  CHECK(InterruptStudy(tiny, run + "/metrics.jsonl", SIGKILL) == -1);
  // A run holds its folder for as long as it lives.
  const int folder = open(run.c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(folder >= 0);
  bool free = false;
  for (int tries = 0; !free && tries < 500; ++tries) {
    free = flock(folder, LOCK_EX | LOCK_NB) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  close(folder);
  CHECK(free);
}

TEST_CASE("ablate: a signal stops the run under way, which saves and goes on later") {
  const TinyStudy tiny("[variants.plain]\n[variants.long]\ntraining.iterations = 3000\n");
  const std::string under_way = tiny.out + "/variants/long/seed-1/run";
  CHECK(InterruptStudy(tiny, under_way + "/metrics.jsonl", SIGINT) == 1);
  CHECK(!fs::exists(tiny.out + "/variants/long/seed-1/finished.json"));
  CHECK(!fs::is_empty(under_way + "/checkpoints"));
  CHECK(Contains(data::ReadFile(tiny.out + "/variants/long/seed-1/log.txt"),
                 "stopped by a signal after iteration"));
  CHECK(!fs::exists(tiny.out + "/variants/plain/seed-2/run"));
  CHECK(Contains(data::ReadFile(tiny.out + "/report.html"), "1 of 4 runs finished"));
}

TEST_CASE("ablate: all variants are checked before the first one starts") {
  const TinyStudy tiny("[variants.plain]\n[variants.large]\ncluster.memory_bytes = 1000\n");
  const ProgramResult result = RunProgram(tiny.Command());
  CHECK(result.exit_code == 1);
  CHECK(Contains(result.output, "study.toml:7:24: error: stage 0 needs an arena of"));
  CHECK(Contains(result.output, "study.toml:6: variant 'large' cannot run"));
  CHECK(!fs::exists(tiny.out));

  const TinyStudy nowhere("[variants.plain]\n[variants.lost]\ndata.paths = [\"/nowhere/at/all\"]\n");
  const ProgramResult lost = RunProgram(nowhere.Command());
  CHECK(lost.exit_code == 1);
  CHECK(Contains(lost.output, "/nowhere/at/all"));
  CHECK(Contains(lost.output, "variant 'lost' cannot run"));
  CHECK(!fs::exists(nowhere.out));

  const TinyStudy asked(
      "[variants.plain]\n[variants.asked]\nevaluation.interval = 1\nevaluation.tasks = "
      "[\"lambada=/nowhere/tasks.jsonl\"]\n");
  const ProgramResult task = RunProgram(asked.Command());
  CHECK(task.exit_code == 1);
  CHECK_MESSAGE(Contains(task.output, "/nowhere/tasks.jsonl"), task.output);
  CHECK(Contains(task.output, "variant 'asked' cannot run"));
  CHECK(!fs::exists(asked.out));
}

TEST_CASE("ablate: --check says the warnings on each variant's plan, once where all have them") {
  const TinyStudy tiny(
      "[variants.plain]\n[variants.long]\nmodel.max_positions = 32\n[variants.narrow]\n"
      "model.attention.window = 8\n");
  const ProgramResult result =
      RunProgram(tiny.Command("--check --set model.norm.epsilon=1 --set model.attention.window=16 --set "
                              "checkpoint.memory_interval=3"));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (std::size_t at = result.output.find(text); at != std::string::npos;
         at = result.output.find(text, at + 1))
      ++found;
    return found;
  };
  CAPTURE(result.output);
  CHECK(count("warning: ") == 3);
  CHECK(count("which begins at about 0.0004 [W313]\n") == 1);
  CHECK(count("a window of 16 does nothing to sequences of 16 (variants 'plain', 'long') [W310]\n") == 1);
  CHECK(count("study.toml:7:23: warning: positions 16 to 31 of the learned table are never trained: "
              "sequence_length is 16 (variant 'long') [W309]\n") == 1);
  CHECK(count("note: checkpoint.memory_interval is not used: checkpoint.memory is false\n") == 1);
  CHECK(!fs::exists(tiny.out));
}

TEST_CASE("ablate: --check names the variants of a warning where another one is refused") {
  const TinyStudy tiny("[variants.plain]\n[variants.wrong]\ncluster.memory_bytes = 1000\n");
  const ProgramResult result = RunProgram(tiny.Command("--check --set model.norm.epsilon=1"));
  CHECK(result.exit_code == 1);
  CAPTURE(result.output);
  CHECK(Contains(result.output, "variant 'wrong' cannot run\n"));
  CHECK(Contains(result.output, "(variant 'plain') [W313]\n"));
}

TEST_CASE("ablate: a run that fails does not stop the others, and is told") {
  const TinyStudy tiny(
      "[variants.plain]\n[variants.wild]\noptimizer = { learning_rate = 1e6, clip_grad_norm = 0.0 }\n");
  const ProgramResult result = RunProgram(tiny.Command());
  CHECK(result.exit_code == 1);
  CHECK(Contains(result.output, "wild, seed 1: failed with exit code 1, see "));
  CHECK(Contains(result.output, "plain, seed 2: finished\n"));
  const std::string page = data::ReadFile(tiny.out + "/report.html");
  CHECK(Contains(page, "2 of 4 runs finished"));
  CHECK(Contains(page, "so the weights are spoilt and not saved"));
}

TEST_CASE("ablate: the committed study's page has its runs' numbers") {
  CheckPage(SourcePath("docs/studies/gelu-swiglu"), {"gelu", "swiglu"}, {1, 2, 3});
}

}  // namespace engine::cli

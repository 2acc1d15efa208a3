// What is told of iterations, with what ranks' devices say of themselves.
#include "engine/train/iteration_log.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/driver/compile_recipe.h"
#include "engine/train/report.h"
#include "tests/launch/rendezvous_world.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// Three ranks, as processes are, of which the second's device says nothing. `asked`: how often the others were asked.
struct ThreeRanks {
  explicit ThreeRanks(const std::string& out) {
    const absl::StatusOr<plan::Plan> compiled =
        driver::CompileRecipe(recipe, {.profile = CpuDevice().profile});
    REQUIRE_MESSAGE(compiled.ok(), Message(compiled.status()));
    world.JoinAll();
    options.out = out;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      devices[rank].rank = static_cast<std::int64_t>(rank);
      const double number = static_cast<double>(rank);
      devices[rank].health = [this, rank, number]() -> std::optional<state::DeviceHealth> {
        ++asked[rank];
        if (rank == 1) return std::nullopt;
        return state::DeviceHealth{
            .clock_mhz = 1980 - 100 * number, .temperature_c = 60.5 + number, .text = "it is hot"};
      };
      runs.push_back(std::make_unique<RunContext>(
          RunContext{.recipe = recipe, .options = options, .device = devices[rank]}));
      runs[rank]->plan = *compiled;
      runs[rank]->processes = world.clients[rank].value().get();
    }
    absl::StatusOr<std::unique_ptr<Reporter>> opened = Reporter::Open(out, 0, 2, RunFacts{});
    REQUIRE(opened.ok());
    reporter = *std::move(opened);
    runs[0]->reporter = reporter.get();
    for (const auto& run : runs) logs.push_back(std::make_unique<IterationLog>(*run));
  }
  void Report(std::int64_t iteration) {
    world.OnAll([&](launch::Client&, std::int64_t rank) {
      IterationLog& log = *logs[static_cast<std::size_t>(rank)];
      executor::IterationResult result;
      result.busy_ms = busy_ms[rank];
      const absl::Status told = log.Report({.iteration = iteration, .iterations = 9, .loss = 1}, {result});
      REQUIRE_MESSAGE(told.ok(), Message(told));
      REQUIRE(log.Flush().ok());
    });
  }

  recipe::Recipe recipe = MakeRecipe(kGptLike, {"parallelism.dp=3", "training.global_batch=6",
                                                "training.micro_batch=2", "logging.interval=2"});
  launch::World world{3};
  state::Device devices[3];
  RunOptions options;
  int asked[3] = {};
  double busy_ms[3] = {10, 10, 10};
  std::vector<std::unique_ptr<RunContext>> runs;
  std::unique_ptr<Reporter> reporter;
  std::vector<std::unique_ptr<IterationLog>> logs;
};

}  // namespace

TEST_CASE("iteration log: logged iterations have the clocks and temperatures of all ranks' devices") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "run");
  std::vector<nlohmann::json> lines;
  {
    Caught output(stdout);
    ThreeRanks ranks(folder / "run");
    for (const std::int64_t iteration : {1, 2, 3}) ranks.Report(iteration);
    ranks.reporter->Close(true);
    output.End();
    lines = Metrics(folder / "run");
    // It may be some seconds old.
    for (const int asked : ranks.asked) CHECK(asked == 1);
  }
  REQUIRE(lines.size() == 3);
  CHECK(lines[1]["rank_clock_mhz"].dump() == "[1980.0,null,1780.0]");
  CHECK(lines[1]["rank_temperature_c"].dump() == "[60.5,null,62.5]");
  CHECK(lines[1]["rank_busy_ms"].size() == 3);
  CHECK(!lines[2].contains("rank_clock_mhz"));
}

TEST_CASE("iteration log: a slow rank is warned of, but not where ranks share cores") {
  for (const bool shares : {false, true}) {
    CAPTURE(shares);
    const TempDir folder;
    std::filesystem::create_directories(folder / "run");
    Caught output(stdout);
    Caught notes(stderr);
    {
      ThreeRanks ranks(folder / "run");
      ranks.busy_ms[2] = 40;
      for (state::Device& device : ranks.devices) device.shares_cores = shares;
      for (const std::int64_t iteration : {1, 2, 4, 6}) ranks.Report(iteration);
      ranks.reporter->Close(true);
    }
    const std::string told = notes.End();
    output.End();
    CHECK(Contains(told, "warning: rank 2 is slow: its passes take 4.0 times as long as the median") ==
          !shares);
  }
}

TEST_CASE("iteration log: a run of one rank tells of its device, and one without such a device does not") {
  const TempDir folder;
  WriteDataset(folder / "text", 40);
  const recipe::Recipe recipe =
      RunRecipe(folder, {"training.iterations=4", "evaluation.interval=0", "logging.interval=2"});
  state::Device device = CpuDevice();
  device.health = [] {
    return state::DeviceHealth{.clock_mhz = 1410, .temperature_c = 88, .text = "it is hot"};
  };
  REQUIRE(RunCaught(recipe, folder / "warm", false, device).status.ok());
  for (const nlohmann::json& line : IterationMetrics(folder / "warm")) {
    const bool is_logged = line["iteration"] != 3;
    CHECK(line.contains("rank_temperature_c") == is_logged);
    if (is_logged) CHECK(line["rank_temperature_c"].dump() == "[88.0]");
    if (is_logged) CHECK(line["rank_clock_mhz"].dump() == "[1410.0]");
  }
  MustRun(recipe, folder / "cold");
  for (const nlohmann::json& line : IterationMetrics(folder / "cold"))
    CHECK(!line.contains("rank_clock_mhz"));
}

}  // namespace engine::train::testing

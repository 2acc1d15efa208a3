// What a run logs of its routers, and choices that [debug] forces.
#include <cmath>

#include "engine/model/load.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// The metrics of the first iteration of a small model with eight experts a layer.
nlohmann::json FirstMetrics(const std::string& force) {
  const TempDir folder;
  const recipe::LoadResult loaded =
      model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/experts.toml",
                  {.sets = {"debug.router=" + force, "data.source=random", "data.sequence_length=64",
                            "training.iterations=1", "schedule.kind=constant", "schedule.warmup_iterations=0",
                            "evaluation.interval=0"},
                   .root = ""});
  REQUIRE(loaded.ok());
  MustRun(loaded.recipe, folder / "out");
  std::ifstream lines(folder / "out/metrics.jsonl");
  std::string line;
  REQUIRE(std::getline(lines, line));
  return nlohmann::json::parse(line)["metrics"];
}

}  // namespace

TEST_CASE("the log has the loads and the entropy of each router, and what is forced of them") {
  const nlohmann::json chosen = FirstMetrics("model");
  const nlohmann::json even = FirstMetrics("even");
  const nlohmann::json zipf = FirstMetrics("zipf");
  for (int layer = 0; layer < 4; ++layer) {
    const std::string router = "layers." + std::to_string(layer) + ".mlp.router.";
    CAPTURE(router);
    // New weights choose neither evenly nor always the same.
    CHECK(chosen[router + "load_max"] > 1);
    CHECK(chosen[router + "load_max"] < 3);
    CHECK(chosen[router + "load_min"] < 1);
    CHECK(chosen[router + "entropy"] > 1);
    CHECK(chosen[router + "entropy"] <= std::log(8.0));
    CHECK(even[router + "load_max"] == 1);
    CHECK(even[router + "load_min"] == 1);
    // The first of eight experts is chosen about (1 + 7)^0.7 = 4 times as often as the last.
    CHECK(zipf[router + "load_max"] > 1.7);
    CHECK(zipf[router + "load_min"] < 0.7);
  }
}

}  // namespace engine::train::testing

// What a run logs of its routers, and choices that [debug] forces.
#include <cmath>

#include "engine/model/load.h"
#include "tests/train/documents.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

// The first line of the metrics of a small model with eight experts a layer.
nlohmann::json FirstLine(std::vector<std::string> sets) {
  const TempDir folder;
  sets.insert(sets.end(), {"training.iterations=1", "schedule.kind=constant", "schedule.warmup_iterations=0",
                           "evaluation.interval=0"});
  const recipe::LoadResult loaded = model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/experts.toml",
                                                {.sets = std::move(sets), .root = ""});
  REQUIRE(loaded.ok());
  MustRun(loaded.recipe, folder / "out");
  std::ifstream lines(folder / "out/metrics.jsonl");
  std::string line;
  REQUIRE(std::getline(lines, line));
  return nlohmann::json::parse(line);
}

nlohmann::json FirstMetrics(const std::string& force) {
  return FirstLine({"debug.router=" + force, "data.source=random", "data.sequence_length=64"})["metrics"];
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

TEST_CASE("the perplexity of an evaluation is without what routers add to its loss") {
  const TempDir folder;
  const recipe::LoadResult loaded =
      model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/experts.toml",
                  {.sets = {"training.iterations=1", "schedule.kind=constant", "schedule.warmup_iterations=0",
                            "data.source=random", "data.sequence_length=64", "evaluation.interval=1",
                            "evaluation.iterations=1"},
                   .root = ""});
  REQUIRE(loaded.ok());
  const RunResult result = RunCaught(loaded.recipe, folder / "out");
  REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
  for (const nlohmann::json& line : Metrics(folder / "out")) {
    if (!line.contains("validation_loss")) continue;
    const double of_tokens = line["metrics"]["loss"];
    CHECK(line["validation_loss"] > of_tokens + 1e-4);
    CHECK_MESSAGE(Contains(result.output, fmt::format("lm loss PPL: {:.6E} |", std::exp(of_tokens))),
                  result.output);
  }
}

TEST_CASE("a loss with terms of its own has no perplexity") {
  for (const char* term : {"model.main.loss.z_loss=0.1", "model.main.loss.smoothing=0.1"}) {
    CAPTURE(std::string(term));
    const TempDir folder;
    const recipe::LoadResult loaded =
        model::Load(std::string(ENGINE_SOURCE_DIR) + "/recipes/experts.toml",
                    {.sets = {"training.iterations=1", "schedule.kind=constant",
                              "schedule.warmup_iterations=0", "data.source=random", "data.sequence_length=64",
                              "evaluation.interval=1", "evaluation.iterations=1", term},
                     .root = ""});
    REQUIRE(loaded.ok());
    const RunResult result = RunCaught(loaded.recipe, folder / "out");
    REQUIRE_MESSAGE(result.status.ok(), Message(result.status));
    CHECK_MESSAGE(Contains(result.output, "lm loss value: "), result.output);
    CHECK_MESSAGE(!Contains(result.output, "PPL"), result.output);
  }
}

TEST_CASE("losses and loads of routers are of all tokens, whether their labels count or not") {
  const auto line_of = [](bool with_mask) {
    const TempDir folder;
    WriteDocuments(folder / "text", with_mask);
    return FirstLine({"data.paths=[\"" + folder / "text" + "\"]", "data.split=\"1\"", "data.weights=[1]",
                      "data.sequence_length=16"});
  };
  const nlohmann::json all = line_of(false);
  const nlohmann::json some = line_of(true);
  int of_routers = 0;
  for (const auto& [name, value] : all["metrics"].items()) {
    if (name.find(".router.") == std::string::npos) continue;
    CAPTURE(name);
    ++of_routers;
    CHECK(some["metrics"][name] == value);
  }
  CHECK(of_routers >= 4 * 4);
  const auto loss_of = [](const nlohmann::json& line) { return line["metrics"]["loss"].get<double>(); };
  const auto rest_of = [&](const nlohmann::json& line) { return line["loss"].get<double>() - loss_of(line); };
  CHECK(loss_of(some) != loss_of(all));
  CHECK(rest_of(all) > 1e-4);
  CHECK(rest_of(some) ==
        doctest::Approx(rest_of(all)).epsilon(1e-4));  // the objective's losses are in float32
}

}  // namespace engine::train::testing

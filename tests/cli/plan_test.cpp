#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/cli/commands.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/run_command.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {
namespace {

const std::string& Quickstart() {
  static const std::string path = SourcePath("recipes/quickstart.toml");
  return path;
}

TEST_CASE("plan --generate: what caches take, each step, and wrong options") {
  const CommandResult text = RunCommand(AddPlanCommand, {"plan", Quickstart(), "--generate", "3"});
  CHECK(text.exit_code == 0);
  for (const char* part : {"mesh      dp 2 · tp 2 · pp 1 · cp 1 · ep 1",
                           "4 sequences at a time, 2 on each of the 2 ranks of dp · ep", "caches ",
                           "prefill of 2 × 16 tokens", "decode of 4 × 1 tokens"})
    CHECK_MESSAGE(text.output.find(part) != std::string::npos, part);
  const CommandResult full =
      RunCommand(AddPlanCommand, {"plan", Quickstart(), "--generate", "3", "--full", "--rank", "0"});
  CHECK(full.output.find("state cache/") != std::string::npos);
  CHECK(RunCommand(AddPlanCommand, {"plan", Quickstart(), "--generate", "3", "--full", "--rank", "99"})
            .exit_code == 1);
}

}  // namespace

TEST_CASE("plan: a summary with memory, communication and the schedule") {
  const CommandResult result =
      RunCommand(AddPlanCommand, {"plan", Quickstart(), "--set", "parallelism.pp=2"});
  CHECK(result.exit_code == 0);
  for (const char* part : {"parameters", "gradients", "optimizer", "activations", "schedule (bubble"}) {
    CHECK(Contains(result.output, part));
  }
}

TEST_CASE("plan: JSON, and the same plan twice is the same text") {
  const CommandResult result = RunCommand(AddPlanCommand, {"plan", Quickstart(), "--json"});
  CHECK(result.exit_code == 0);
  const nlohmann::json json = nlohmann::json::parse(result.output, nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["mesh"]["world"] == 4);
  const std::int64_t arena = json["stages"][0]["memory"]["total"];
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : json["stages"][0]["memory"].items())
    sum += kind == "total" ? 0 : bytes.get<std::int64_t>();
  CHECK(sum == arena);
  CHECK(!json.contains("ranks"));
  CHECK(RunCommand(AddPlanCommand, {"plan", Quickstart(), "--json"}).output == result.output);
}

TEST_CASE("plan: one rank's instructions, to a file") {
  const data::TempDir folder;
  const CommandResult text = RunCommand(AddPlanCommand, {"plan", Quickstart(), "--rank", "3", "--full"});
  CHECK(text.exit_code == 0);
  CHECK(text.output.starts_with("rank 3 of 4: dp 1 tp 1 pp 0 cp 0 ep 0, plan "));
  CHECK(Contains(text.output, "layers.3.mlp.fc2"));
  const CommandResult to_file = RunCommand(
      AddPlanCommand, {"plan", Quickstart(), "--rank", "3", "--full", "--out", folder / "plan.txt"});
  CHECK(to_file.exit_code == 0);
  CHECK(to_file.output.empty());
  CHECK((data::ReadFile(folder / "plan.txt") == text.output));
}

TEST_CASE("plan: what an iteration takes, by stage, and its trace") {
  const data::TempDir folder;
  const std::string recipe = SourcePath("recipes/gpt2-large-dp2pp2.toml");
  const CommandResult text = RunCommand(AddPlanCommand, {"plan", recipe, "--trace", folder / "trace.json"});
  CHECK(text.exit_code == 0);
  for (const char* part : {"predicted iteration on h200-x4: ", " tokens/s, ", "exposed exchange", "bubble",
                           "MFU ", "by components of the model", "\n    attention "}) {
    CHECK_MESSAGE(Contains(text.output, part), part);
  }
  const nlohmann::json trace = nlohmann::json::parse(data::ReadFile(folder / "trace.json"), nullptr, false);
  REQUIRE(trace.is_object());
  double end_us = 0;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X")
      end_us = std::max(end_us, event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  const nlohmann::json json =
      nlohmann::json::parse(RunCommand(AddPlanCommand, {"plan", recipe, "--json"}).output, nullptr, false);
  const nlohmann::json& prediction = json.at("prediction");
  CHECK(1e-6 * end_us == doctest::Approx(prediction.at("iteration_s").get<double>()));
  REQUIRE(prediction.at("stages").size() == 2);
  for (const nlohmann::json& stage : prediction.at("stages")) {
    double sum = 0;
    for (const char* part : {"compute_s", "exposed_s", "bubble_s", "update_s"})
      sum += stage.at(part).get<double>();
    CHECK(sum == doctest::Approx(prediction.at("iteration_s").get<double>()));
  }
  CHECK(RunCommand(AddPlanCommand, {"plan", recipe, "--trace", folder / "nowhere/trace.json"}).exit_code ==
        1);
}

TEST_CASE("plan: without the cluster's rates it says which are missing") {
  const CommandResult result = RunCommand(AddPlanCommand, {"plan", Quickstart()});
  CHECK(Contains(result.output,
                 "no predicted time: cluster.matmul_flops, cluster.memory_bandwidth are not given\n"));
  CHECK(!Contains(result.output, "predicted iteration"));
}

// cuDNN's attention that repeats its bits keeps the gradients of the scores, 2 bytes each; Hopper's own kernels do not.
TEST_CASE("plan: precision.deterministic decides what cuDNN's gradient of attention reserves") {
  const auto transients = [](const std::string& device, const std::string& deterministic) {
    const CommandResult result = RunCommand(
        AddPlanCommand, {"plan", SourcePath("recipes/llama-1b-1gpu.toml"), "--json", "--set",
                         "precision.deterministic=" + deterministic, "--set", "cluster.device=" + device});
    const nlohmann::json json = nlohmann::json::parse(result.output, nullptr, false);
    REQUIRE(json.is_object());
    return json["stages"][0]["memory"]["transients"].get<std::int64_t>();
  };
  CHECK(transients("a100", "true") > transients("a100", "false"));
  CHECK(transients("h200", "true") == transients("h200", "false"));
  CHECK(transients("h200", "true") < transients("a100", "true"));
}

TEST_CASE("plan: the passes, and what there is after each") {
  const CommandResult passes = RunCommand(AddPlanCommand, {"plan", Quickstart(), "--passes"});
  CHECK(passes.exit_code == 0);
  CHECK(passes.output.starts_with("balance "));
  CHECK(passes.output.find("\nplace ") != std::string::npos);
  const auto after = [&](const char* pass) {
    const CommandResult result = RunCommand(AddPlanCommand, {"plan", Quickstart(), "--after", pass});
    CHECK(result.exit_code == 0);
    return result.output;
  };
  CHECK(after("balance").find("linear_wgrad") == std::string::npos);
  CHECK(after("differentiate").find("linear_wgrad") != std::string::npos);
  CHECK(after("differentiate").find("all_reduce") == std::string::npos);
  CHECK(after("place").find("all_reduce") != std::string::npos);
  CHECK(after("stages") == RunCommand(AddPlanCommand, {"plan", Quickstart(), "--full"}).output);
  CHECK(RunProgram("plan " + Quickstart() + " --after lunch").exit_code == 2);
}

TEST_CASE("plan: what is refused, and how") {
  const ProgramResult rank = RunProgram("plan " + Quickstart() + " --rank 4");
  CHECK(rank.exit_code == 1);
  CHECK(rank.output == "engine plan: there is no rank 4: the world has 4 ranks\n");
  CHECK(RunProgram("plan " + Quickstart() + " --rank -1").exit_code == 2);
  CHECK(RunProgram("plan").exit_code == 2);
  const ProgramResult bad = RunProgram("plan " + SourcePath("tests/recipe/bad/unknown_key.toml"));
  CHECK(bad.exit_code == 1);
  CHECK(Contains(bad.output, ":4:1: error: unknown key 'hiden' in [model]"));
  // Shown all the same, and refused: a device that is too small.
  const ProgramResult small = RunProgram("plan " + Quickstart() + " --set cluster.memory_bytes=1000000");
  CHECK(small.exit_code == 1);
  CHECK(Contains(small.output, "activations"));
  CHECK(Contains(small.output, "error: "));
}

}  // namespace engine::cli

#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/cli/commands.h"
#include "tests/cli/run_command.h"
#include "tests/cli/tiny_run.h"

namespace engine::cli {
namespace {

std::string Diffed(const std::vector<std::string>& arguments, int exit_code) {
  std::vector<std::string> all = {"diff"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const CommandResult result = RunCommand(AddDiffCommand, all);
  CHECK(result.exit_code == exit_code);
  return result.output;
}

}  // namespace

TEST_CASE("diff: comments and the order of keys and tables are no difference") {
  const data::TempDir folder;
  const std::string head = "extends = [\"" + SourcePath("configs/data/fortunes.toml") + "\", \"" +
                           SourcePath("configs/clusters/cpu.toml") + "\"]\n";
  const std::string model = "[model]\nlayers = 2\nhidden = 32\nvocab = 257\nmax_positions = 128\n";
  const std::string turned =
      "[model]\nmax_positions = 128 # tokens\nvocab = 257\n# narrow\nhidden = 32\nlayers = 2\n";
  const std::string heads = "[model.attention]\nheads = 2\n";
  const std::string rest = "[optimizer]\nlearning_rate = 1e-3\n";
  const std::string training = "[training]\nglobal_batch = 4\nmicro_batch = 2\niterations = 3\n";
  data::WriteFile(folder / "a.toml", head + model + heads + rest + training);
  data::WriteFile(folder / "b.toml", "# another\n" + head + training + rest + turned + heads);
  const std::string text = Diffed({folder / "a.toml", folder / "b.toml", "--exit-code"}, 0);
  CHECK(Contains(text, "\nthe same plan, "));
  CHECK(Contains(text, "\nno difference\n"));
  CHECK(
      Contains(Diffed({folder / "a.toml", folder / "b.toml", "--exit-code", "--set-b", "model.layers=3"}, 1),
               "  model.layers  2  → 3"));
}

TEST_CASE("diff: a recipe, its plan, a run of it and that run's checkpoint are the same") {
  const TinyRun tiny;
  const ProgramResult run = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  REQUIRE_MESSAGE(run.exit_code == 0, run.output);
  const ProgramResult plan = RunProgram("plan " + tiny.recipe + " --json --out " + tiny.folder / "plan.json");
  REQUIRE_MESSAGE(plan.exit_code == 0, plan.output);
  const std::vector<std::string> sides = {tiny.recipe, tiny.folder / "plan.json", tiny.out,
                                          tiny.out + "/checkpoints/iteration_0000008"};
  for (const std::string& a : sides) {
    for (const std::string& b : sides) {
      CAPTURE(a);
      CAPTURE(b);
      const nlohmann::json same = nlohmann::json::parse(Diffed({a, b, "--format", "json", "--exit-code"}, 0));
      CHECK(same["same_plan"] == true);
      CHECK(same["settings"].empty());
      CHECK(same["effects"].empty());
      // A side that keeps its recipe can be changed like a recipe.
      const nlohmann::json changed =
          nlohmann::json::parse(Diffed({a, b, "--format", "json", "--exit-code", "--set-b",
                                        "parallelism.tp=2", "--set", "training.seed=5"},
                                       1));
      REQUIRE(changed["settings"].size() == 1);
      CHECK(changed["settings"][0]["key"] == "parallelism.tp");
      CHECK(changed["settings"][0]["a_origin"] == "default");
      CHECK(changed["settings"][0]["b_origin"] == "--set:2:16");
    }
  }
  const nlohmann::json origin =
      nlohmann::json::parse(Diffed({tiny.out + "/checkpoints/iteration_0000008", tiny.recipe, "--format",
                                    "json", "--set-b", "model.hidden=32"},
                                   0));
  CHECK(Contains(origin["settings"][0]["a_origin"].get<std::string>(), "tiny.toml:3:10"));
}

TEST_CASE("diff: two checkpoints of a run differ in where they stand and in their tensors") {
  const TinyRun tiny;
  const ProgramResult run = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  REQUIRE_MESSAGE(run.exit_code == 0, run.output);
  const std::string a = tiny.out + "/checkpoints/iteration_0000004";
  const std::string b = tiny.out + "/checkpoints/iteration_0000008";
  const std::string text = Diffed({a, b, "--exit-code"}, 1);
  CHECK(Contains(text, "\nno setting differs\n"));
  CHECK(Contains(text, "\ncheckpoint\n  iteration: 4 → 8\n  consumed samples: 16 → 32\n"));
  CHECK(Contains(text, "\ntensors: largest difference of the largest number\n"));
  CHECK(Contains(Diffed({a, b, "--format", "markdown"}, 0), "| `iteration` | `4` | `8` |\n"));
  const nlohmann::json json = nlohmann::json::parse(Diffed({a, b, "--format", "json"}, 0));
  CHECK(json["settings"].empty());
  CHECK(json["checkpoint"]["metadata"][0] == nlohmann::json{{"name", "iteration"}, {"a", "4"}, {"b", "8"}});
  CHECK(!json["checkpoint"]["tensors"].empty());
  const nlohmann::json same = nlohmann::json::parse(Diffed({b, b, "--format", "json", "--exit-code"}, 0));
  CHECK(same["checkpoint"]["tensors"].empty());
  CHECK(same["checkpoint"]["equal_tensors"] > 0);
  CHECK(!nlohmann::json::parse(Diffed({tiny.recipe, b, "--format", "json"}, 0)).contains("checkpoint"));
}

TEST_CASE("diff: what experts differ in is named by the step's attribute") {
  const std::string recipe = SourcePath("recipes/mixtral-s-1gpu.toml");
  const nlohmann::json json = nlohmann::json::parse(
      Diffed({recipe, recipe, "--format", "json", "--set-b", "block.mlp.steps.router.top_k=3", "--set-b",
              "block.mlp.steps.router.aux_loss=0.02", "--set-b", "block.mlp.steps.router.z_loss=0.001",
              "--set-b", "block.mlp.steps.experts.hidden=F/2", "--set-b", "model.dims.X=16"},
             0));
  std::map<std::string, std::string> settings;
  for (const auto& setting : json["settings"])
    settings[setting["key"]] = setting["a"].get<std::string>() + " -> " + setting["b"].get<std::string>();
  CHECK(settings == std::map<std::string, std::string>{{"block.mlp.router.top_k", "2 -> 3"},
                                                       {"block.mlp.router.aux_loss", "0.01 -> 0.02"},
                                                       {"block.mlp.router.z_loss", "none -> 0.001"},
                                                       {"block.mlp.experts.hidden", "\"F\" -> \"F/2\""},
                                                       {"model.dims.X", "8 -> 16"}});
  for (const auto& setting : json["settings"]) {
    const std::string a = setting["a_origin"], b = setting["b_origin"];
    CAPTURE(a);
    CHECK(Contains(a, "mixtral-s-1gpu.toml:"));
    CHECK(b.starts_with("--set:"));
    if (setting["key"] == "block.mlp.router.top_k") CHECK(b == "--set:1:30");
  }
}

TEST_CASE("diff: plan hashes are the same in every run of the program") {
  const std::string arguments = "plan " + SourcePath("recipes/quickstart.toml") + " --json";
  const ProgramResult first = RunProgram(arguments);
  REQUIRE(first.exit_code == 0);
  for (const char* environment : {"LC_ALL=C", "LC_ALL=tr_TR.UTF-8 LANG=de_DE.UTF-8",
                                  "TZ=Asia/Tokyo HOME=/nowhere", "OMP_NUM_THREADS=1"}) {
    CAPTURE(environment);
    CHECK(RunProgram(arguments, environment).output == first.output);
  }
  CHECK(RunShell("cd / && " ENGINE_BINARY " " + arguments).output == first.output);
}

TEST_CASE("diff: what is wrong is told, with exit code 2") {
  const std::string good = SourcePath("recipes/quickstart.toml");
  const data::TempDir folder;
  data::WriteFile(folder / "bad.json", "{\"mesh\": 3}");
  const auto refused = [&](const std::string& arguments, const std::string& message) {
    const ProgramResult result = RunProgram("diff " + arguments);
    CHECK(result.exit_code == 2);
    CHECK(Contains(result.output, message));
  };
  refused(good + " " + SourcePath("tests/recipe/bad/unknown_key.toml"),
          ":4:1: error: unknown key 'hiden' in [model]");
  refused(good + " " + SourcePath("tests/recipe/bad/unknown_key.toml"),
          "engine diff: side b, " + SourcePath("tests/recipe/bad/unknown_key.toml") +
              ", is refused for these errors: nothing was compared\n");
  refused(good + " " + good + " --set-a parallelism.dp=3",
          "hint: global_batch 12 or 18\nengine diff: side a, " + good +
              " --set parallelism.dp=3, is refused for these errors: nothing was compared\n");
  refused(folder / "none.json" + " " + good,
          "engine diff: side a, " + (folder / "none.json") + ", is refused: nothing was compared\n");
  refused(good + " " + folder / "bad.json", "bad.json: no plan as `engine plan --json` writes it");
  refused(good + " " + folder.path(), "holds neither a checkpoint (manifest.json) nor a run (plan.json)");
  refused(good + " " + folder / "none.json",
          "cannot open " + (folder / "none.json") + ": No such file or directory");
  std::filesystem::create_directory(folder / "run");
  data::WriteFile(folder / "run/plan.json", "{\n  \"mesh\": oops");
  refused(good + " " + folder / "run",
          "engine diff: " + (folder / "run/plan.json") + ":2:11: error: syntax error");
  data::WriteFile(folder / "run/plan.json", std::string(100000, '['));
  refused(good + " " + folder / "run", "run/plan.json:1: error: nested deeper than 64 levels");
  data::WriteFile(folder / "run/plan.json", "{}");
  refused(good + " " + folder / "run", "run/plan.json: no plan as `engine plan --json` writes it: key '");
  refused(good + " " + folder / "none.toml", "none.toml");
  refused(good, "b is required");
  refused(good + " " + good + " --set-b model.layer=3", "--set:1:7: error: unknown key 'layer' in [model]");
}

}  // namespace engine::cli

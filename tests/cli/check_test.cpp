#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/cli/commands.h"
#include "tests/cli/run_command.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {

TEST_CASE("check: good and bad files, and the exit code") {
  const std::string good = SourcePath("recipes/quickstart.toml");
  const std::string bad = SourcePath("tests/recipe/bad/unknown_key.toml");
  const CommandResult one = RunCommand(AddCheckCommand, {"check", good});
  CHECK(one.exit_code == 0);
  CHECK(one.output == good + ": ok\n1 recipe checked, 0 with errors\n");

  const CommandResult two = RunCommand(AddCheckCommand, {"check", good, bad});
  CHECK(two.exit_code == 1);
  CHECK(two.output == good + ": ok\n" + bad + ":4:1: error: unknown key 'hiden' in [model]\n" +
                          "    hiden = 64\n    ^~~~~\n    hint: did you mean 'hidden'?\n" +
                          "2 recipes checked, 1 with errors\n");
  CHECK(RunCommand(AddCheckCommand, {"check"}).exit_code == 2);
  CHECK(RunCommand(AddCheckCommand, {"check", good, "--format", "xml"}).exit_code == 2);
  CHECK(RunCommand(AddCheckCommand, {"check", "--help"}).output.find("--root") != std::string::npos);
}

TEST_CASE("check: --set does not take the file after it, and --root confines") {
  const std::string good = SourcePath("recipes/quickstart.toml");
  const CommandResult set = RunCommand(
      AddCheckCommand, {"check", "--set", "parallelism.tp=4", "--set", "data.paths=[\"a\",\"b\"]", good});
  CHECK(set.exit_code == 0);
  CHECK(RunCommand(AddCheckCommand, {"check", good, "--set", "parallelism.tp=3"}).exit_code == 1);
  CHECK(RunCommand(AddCheckCommand, {"check", good, "--root", SourcePath("")}).exit_code == 0);
  const CommandResult confined =
      RunCommand(AddCheckCommand, {"check", good, "--root", SourcePath("recipes")});
  CHECK(confined.exit_code == 1);
  CHECK(confined.output.find("outside of the root") != std::string::npos);
}

TEST_CASE("check: the form of a task is said to be wrong where it stands, and files are not looked for") {
  const std::string good = SourcePath("recipes/quickstart.toml");
  for (const std::string task : {"foo=x.jsonl", "x.jsonl", "lambada="}) {
    const CommandResult wrong =
        RunCommand(AddCheckCommand, {"check", good, "--set", "evaluation.tasks=[\"" + task + "\"]"});
    CHECK(wrong.exit_code == 1);
    CHECK_MESSAGE(wrong.output.find("--set:1:18: error: task \"" + task + "\": ") == 0, wrong.output);
    CHECK(wrong.output.find("multiple_choice") != std::string::npos);
  }
  const CommandResult right = RunCommand(
      AddCheckCommand, {"check", good, "--set", "evaluation.tasks=[\"lambada=no.jsonl\", \"no.toml\"]"});
  CHECK_MESSAGE(right.exit_code == 0, right.output);
}

TEST_CASE("check: what the cluster's device has no kernels for") {
  const std::string good = SourcePath("recipes/quickstart.toml");
  const CommandResult result =
      RunCommand(AddCheckCommand, {"check", good, "--set", "optimizer.moment_dtype=bf16"});
  CHECK(result.exit_code == 1);
  CHECK(result.output ==
        "--set:1:24: error: the cpu executor runs optimizer.moment_dtype fp32, not bf16\n"
        "    optimizer.moment_dtype=bf16\n"
        "                           ^~~~\n"
        "    hint: --set optimizer.moment_dtype=fp32 runs it here\n"
        "1 recipe checked, 1 with errors\n");
  CHECK(RunCommand(AddCheckCommand,
                   {"check", good, "--set", "optimizer.moment_dtype=bf16", "--set", "cluster.device=h200"})
            .exit_code == 0);
}

TEST_CASE("check: a study, as engine ablate --check has it, without its data") {
  const std::string study = SourcePath("recipes/studies/gelu-swiglu.toml");
  const CommandResult good = RunCommand(AddCheckCommand, {"check", "--strict", study});
  CHECK(good.exit_code == 0);
  CHECK(good.output == study + ": ok\n1 study checked, 0 with errors\n");
  CHECK(RunCommand(AddCheckCommand, {"check", study, SourcePath("recipes/quickstart.toml")})
            .output.ends_with("\n1 recipe and 1 study checked, 0 with errors\n"));

  const data::TempDir folder;
  const std::string head = "[study]\nbase = \"" + SourcePath("recipes/quickstart.toml") + "\"\n";
  const std::string bad = folder / "bad.toml";
  data::WriteFile(bad, head + "[grid]\nmodel.hidden = [128, 130]\n");
  const CommandResult recipe = RunCommand(AddCheckCommand, {"check", bad});
  CHECK(recipe.exit_code == 1);
  CHECK(recipe.output.starts_with(bad +
                                  ":4:22: error: hidden 130 is not divisible by heads 8 (remainder 2)\n"));

  // A mistake that only the variant's plan shows: at the line that makes it, and at the variant's name.
  data::WriteFile(bad, head + "[variants.large]\nmodel.layers = 1000\ncluster.memory_bytes = \"1 GB\"\n");
  const CommandResult plan = RunCommand(AddCheckCommand, {"check", "--format", "json", bad});
  CHECK(plan.exit_code == 1);
  const nlohmann::json found = nlohmann::json::parse(plan.output)["files"][0]["diagnostics"];
  REQUIRE(found.size() == 2);
  CHECK(found[0]["line"] == 3);
  CHECK(found[0]["code"] == "E105");
  CHECK(found[0]["message"] == "variant 'large' cannot run");
  CHECK(found[1]["line"] == 5);
  CHECK(found[1]["code"] == "E302");

  for (const char* format : {"sarif", "junit", "github", "text"}) {
    CHECK(RunCommand(AddCheckCommand, {"check", "--format", format, bad}).exit_code == 1);
  }
}

TEST_CASE("check: JSON") {
  const std::string bad = SourcePath("tests/recipe/bad/unknown_key.toml");
  const CommandResult result =
      RunCommand(AddCheckCommand, {"check", "--format", "json", bad, SourcePath("recipes/quickstart.toml")});
  CHECK(result.exit_code == 1);
  const nlohmann::json json = nlohmann::json::parse(result.output);
  CHECK(json["ok"] == false);
  REQUIRE(json["files"].size() == 2);
  CHECK(json["files"][0]["ok"] == false);
  CHECK(json["files"][1]["ok"] == true);
  const nlohmann::json& diagnostic = json["files"][0]["diagnostics"][0];
  CHECK(diagnostic["line"] == 4);
  CHECK(diagnostic["column"] == 1);
  CHECK(diagnostic["severity"] == "error");
  CHECK(diagnostic["message"] == "unknown key 'hiden' in [model]");
  CHECK(diagnostic["hint"] == "did you mean 'hidden'?");
}

}  // namespace engine::cli

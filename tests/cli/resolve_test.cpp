#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/cli/commands.h"
#include "tests/cli/run_command.h"

namespace engine::cli {

TEST_CASE("resolve: every value with its origin") {
  const std::string file = SourcePath("recipes/quickstart.toml");
  const CommandResult toml = RunCommand(AddResolveCommand, {"resolve", file, "--set", "training.seed=9"});
  CHECK(toml.exit_code == 0);
  CHECK(toml.output.find("seed = 9                                  # --set:1:15\n") != std::string::npos);
  CHECK(toml.output.find("beta1 = 0.9                               # default\n") != std::string::npos);

  const CommandResult json = RunCommand(AddResolveCommand, {"resolve", file, "--format", "json"});
  const nlohmann::json values = nlohmann::json::parse(json.output);
  CHECK(values["model.layers"]["value"] == 8);
  CHECK(values["training.seed"]["origin"] == "default");
}

TEST_CASE("resolve: a bad recipe is not resolved") {
  const CommandResult result =
      RunCommand(AddResolveCommand, {"resolve", SourcePath("tests/recipe/bad/unknown_key.toml")});
  CHECK(result.exit_code == 1);
  CHECK(result.output.empty());
}

}  // namespace engine::cli

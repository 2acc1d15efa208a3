// Attention without a fast kernel on the recipe's GPU: refused by all that would run it, and shown by what only plans it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/model/load.h"
#include "engine/train/run.h"
#include "tests/cli/run_command.h"

namespace engine::cli {
namespace {

// GPT-2 small with heads of 60 elements, on random tokens.
std::vector<std::string> OddHeadSets(const std::string& more = "") {
  std::vector<std::string> sets = {"model.attention.head_dim=60", "data.source=random", "data.paths=[]"};
  if (!more.empty()) sets.push_back(more);
  return sets;
}

CommandResult PlanOfOddHeads(const std::string& more = "") {
  std::vector<std::string> arguments = {"plan", SourcePath("recipes/gpt2-124m-1gpu.toml")};
  for (const std::string& set : OddHeadSets(more)) arguments.insert(arguments.end(), {"--set", set});
  return RunCommand(AddPlanCommand, arguments);
}

// What a run says before it begins.
std::string ErrorBeforeRun(const std::string& more = "") {
  recipe::LoadOptions options;
  options.sets = OddHeadSets(more);
  const recipe::LoadResult loaded = model::Load(SourcePath("recipes/gpt2-124m-1gpu.toml"), options);
  REQUIRE(loaded.ok());
  return Message(train::Check(loaded.recipe, ProfileOf(loaded.recipe)));
}

}  // namespace

TEST_CASE("attention without a fast kernel: its plan is printed, and is an error") {
  const CommandResult refused = PlanOfOddHeads();
  CHECK(refused.exit_code == 1);
  CHECK((refused.output.find("slow: attention of heads of less than 64 elements") != std::string::npos));
  CHECK(PlanOfOddHeads("precision.attention=reference").exit_code == 0);
  CHECK(PlanOfOddHeads("precision.compute=fp32").exit_code == 0);
  CHECK(PlanOfOddHeads("model.attention.head_dim=56").exit_code == 0);
}

TEST_CASE("attention without a fast kernel: a run does not begin, at the key that causes it") {
  const std::string error = ErrorBeforeRun();
  CHECK((error.find("--set:1:26: error: attention with heads of 60 elements has no fast kernel on h200: ") ==
         0));
  CHECK((error.find("precision.attention = \"reference\"") != std::string::npos));
  CHECK(ErrorBeforeRun("precision.attention=reference").empty());
  CHECK(ErrorBeforeRun("cluster.device=cpu").find("fast kernel") == std::string::npos);
}

}  // namespace engine::cli

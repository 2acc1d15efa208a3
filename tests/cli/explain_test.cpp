#include <doctest/doctest.h>

#include <set>
#include <string>

#include "engine/cli/commands.h"
#include "engine/recipe/codes.h"
#include "tests/cli/run_command.h"
#include "tests/recipe/test_files.h"

namespace engine::cli {

TEST_CASE("explain: one code by number or name, the list, and what is no code") {
  const CommandResult one = RunCommand(AddExplainCommand, {"explain", "W102"});
  CHECK(one.exit_code == 0);
  CHECK(one.output.rfind("W102 pipeline-bubble: More than 15 % of the pipeline's time is idle\n\n", 0) == 0);
  CHECK(one.output.find("\nremedy: More microbatches") != std::string::npos);
  CHECK(RunCommand(AddExplainCommand, {"explain", "pipeline-bubble"}).output == one.output);
  CHECK(RunCommand(AddExplainCommand, {"explain", "w102"}).output == one.output);
  CHECK(RunCommand(AddExplainCommand, {"explain", "Pipeline-Bubble"}).output == one.output);
  const CommandResult list = RunCommand(AddExplainCommand, {"explain"});
  for (const recipe::Code& code : recipe::Codes()) {
    CHECK(list.output.find(std::string(code.code) + "  " + std::string(code.name)) != std::string::npos);
  }
  CHECK(RunCommand(AddExplainCommand, {"explain", "W999"}).exit_code == 2);
}

TEST_CASE("docs/warnings.md is what the table says (engine explain --page > docs/warnings.md)") {
  CHECK((RunCommand(AddExplainCommand, {"explain", "--page"}).output ==
         recipe::ReadText(SourcePath("docs/warnings.md"))));
}

TEST_CASE("codes and names are each their own") {
  std::set<std::string> seen;
  for (const recipe::Code& code : recipe::Codes()) {
    CHECK(seen.insert(std::string(code.code)).second);
    CHECK(seen.insert(std::string(code.name)).second);
    CHECK(!code.title.empty());
    CHECK(!code.reason.empty());
    CHECK(!code.remedy.empty());
  }
}

}  // namespace engine::cli

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/tiny_run.h"

namespace engine::cli {

namespace fs = std::filesystem;

TEST_CASE("checkpoint info: a run's folder, its checkpoints, one of them; a copy of one by another number") {
  const TinyRun tiny;
  REQUIRE(RunProgram("run " + tiny.recipe + " --out " + tiny.out).exit_code == 0);
  const std::string root = tiny.out + "/checkpoints";
  const ProgramResult of_run = RunProgram("checkpoint info " + tiny.out);
  CHECK(of_run.exit_code == 0);
  CHECK(Contains(of_run.output, "         4  "));
  CHECK(of_run.output == RunProgram("checkpoint info " + root).output);
  const ProgramResult one = RunProgram("checkpoint info " + root + "/iteration_0000008");
  CHECK(Contains(one.output, "iteration         8\n"));
  CHECK(Contains(one.output, "read              data " + tiny.folder / "text_text_document.bin: "));
  const auto json = nlohmann::json::parse(
      RunProgram("checkpoint info --format json " + root + "/iteration_0000008").output, nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["fingerprints"].size() == 2);

  fs::copy(root + "/iteration_0000004", root + "/iteration_0000099", fs::copy_options::recursive);
  const std::string why = "iteration_0000099 is named for iteration 99, but its manifest is of iteration 4";
  const ProgramResult list = RunProgram("checkpoint info " + tiny.out);
  CHECK(list.exit_code == 1);
  CHECK(Contains(list.output, "damaged: "));
  CHECK(Contains(list.output, why));
  const std::string copy = root + "/iteration_0000099";
  const std::string tokens = " --tokens 3 --temperature 0";
  for (const std::string& command : {"checkpoint info " + copy, "generate " + copy + tokens}) {
    const ProgramResult refused = RunProgram(command);
    CHECK(refused.exit_code == 1);
    CHECK(Contains(refused.output, why));
  }
  const ProgramResult generated = RunProgram("generate " + tiny.out + tokens);
  CHECK(generated.exit_code == 0);
  CHECK(generated.output.ends_with(RunProgram("generate " + root + "/iteration_0000008" + tokens).output));
  fs::rename(copy, root + "/best");  // a name that says nothing of an iteration
  CHECK(RunProgram("generate " + root + "/best" + tokens).exit_code == 0);
}

TEST_CASE("checkpoint info: what is none") {
  const data::TempDir folder;
  const ProgramResult none = RunProgram("checkpoint info " + folder.path());
  CHECK(none.exit_code == 1);
  CHECK(none.output == "error: " + folder.path() +
                           " is neither a checkpoint nor a folder of checkpoints, nor a run's with any\n");
}

}  // namespace engine::cli

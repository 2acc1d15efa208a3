#include <doctest/doctest.h>

#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/run_command.h"
#include "tests/data/temp_dir.h"

namespace engine::cli {
namespace {

std::string Recipe() { return SourcePath("recipes/scale/llama-7b-8gpu.toml"); }
constexpr const char* kFixed =
    " --fix parallelism.cp --fix parallelism.zero_stage --fix parallelism.virtual_stages --fix "
    "parallelism.schedule"
    " --fix recompute.granularity --fix training.micro_batch";

TEST_CASE("search writes a recipe that extends the one given and passes its check") {
  const data::TempDir folder;
  const std::string out = folder / "found.toml";
  const ProgramResult result = RunProgram(
      "search " + Recipe() + " --world 16 --set training.global_batch=128" + kFixed + " --out " + out);
  CHECK(result.exit_code == 0);
  CHECK(result.output.find("lawful layouts of 16 ranks") != std::string::npos);
  CHECK(result.output.find("its neighbours") != std::string::npos);
  const std::string text = data::ReadFile(out);
  CHECK(text.find("llama-7b-8gpu.toml") != std::string::npos);
  CHECK(text.find("global_batch = 128") != std::string::npos);  // what --set said is kept
  CHECK(RunProgram("check " + out).exit_code == 0);
}

TEST_CASE("search names the keys that it varies") {
  const ProgramResult result = RunProgram("search " + Recipe() + " --fix parallelism.ep");
  CHECK(result.exit_code == 2);
  CHECK(result.output.find("--fix parallelism.ep: search varies parallelism.dp, ") != std::string::npos);
}

TEST_CASE("a world that does not fill nodes is refused") {
  const ProgramResult result = RunProgram("search " + Recipe() + " --world 12");
  CHECK(result.exit_code == 2);
  CHECK(result.output.find("--world 12: nodes of h100-8x-ib400 have 8 devices each") != std::string::npos);
}

}  // namespace
}  // namespace engine::cli

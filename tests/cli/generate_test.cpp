#include <doctest/doctest.h>

#include <filesystem>

#include "tests/cli/tiny_run.h"

namespace engine::cli {

TEST_CASE("generate: from a run or one checkpoint, the same text for the same seed") {
  const TinyRun tiny;
  const ProgramResult trained = RunProgram("run " + tiny.recipe + " --out " + tiny.out +
                                           " --set parallelism.tp=2 --set training.iterations=30 --set "
                                           "checkpoint.interval=0");
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.output);
  const std::string prompt = " --prompt '9 bottles' --tokens 40 --temperature 1";
  const ProgramResult first = RunProgram("generate " + tiny.out + prompt);
  CHECK(first.exit_code == 0);
  CHECK(first.output.starts_with("9 bottles"));
  CHECK(first.output.ends_with("\n"));
  CHECK(first.output.size() > 12);
  // A prompt and its answer are longer than the model's 16 positions: older text falls out.
  CHECK(RunProgram("generate " + tiny.out + "/checkpoints/iteration_0000030" + prompt + " --threads 1")
            .output == first.output);
  CHECK(RunProgram("generate " + tiny.out + prompt + " --seed 2").output != first.output);
  const std::string greedy = " --prompt bottle --tokens 5 --temperature 0 --seed ";
  CHECK(RunProgram("generate " + tiny.out + greedy + "1").output ==
        RunProgram("generate " + tiny.out + greedy + "2").output);
  CHECK(RunProgram("generate " + tiny.out + " --tokens 3").exit_code == 0);  // without a prompt
}

TEST_CASE("generate: what is refused, and how") {
  const data::TempDir folder;
  const ProgramResult none = RunProgram("generate " + folder.path());
  CHECK(none.exit_code == 1);
  CHECK(none.output == "engine generate: " + folder.path() + " holds no checkpoint\n");
  data::WriteFile(folder / "manifest.json", "{");
  const ProgramResult damaged = RunProgram("generate " + folder.path());
  CHECK(damaged.exit_code == 1);
  CHECK(damaged.output.starts_with("engine generate: "));
  CHECK(RunProgram("generate").exit_code == 2);
  CHECK(RunProgram("generate " + folder.path() + " --temperature -1").exit_code == 2);
  CHECK(RunProgram("generate " + folder.path() + " --tokens 0").exit_code == 2);
}

}  // namespace engine::cli

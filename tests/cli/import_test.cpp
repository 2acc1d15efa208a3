#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/cli/commands.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/run_command.h"
#include "tests/import/megatron_runs.h"
#include "tests/recipe/test_files.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

CommandResult Import(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"import", "megatron"});
  return RunCommand(AddImportCommand, arguments);
}

}  // namespace

TEST_CASE("import: the recipes of recipes/megatron, from the command line") {
  const recipe::TemporaryFolder folder;
  for (const import::MegatronRun& run : import::MegatronRuns()) {
    CAPTURE(run.recipe);
    const std::string out = folder.Path(run.recipe + ".toml");
    std::vector<std::string> arguments = {SourcePath("tests/import/megatron/" + run.script + ".sh"), "--out",
                                          out, "--cluster",
                                          SourcePath("configs/clusters/" + run.cluster + ".toml")};
    for (const auto& [name, value] : run.variables) {
      arguments.insert(arguments.end(), {"--set", name + "=" + value});
    }
    CHECK(Import(arguments).exit_code == 0);
    const CommandResult check = RunCommand(AddCheckCommand, {"check", out});
    CHECK_MESSAGE(check.exit_code == 0, check.output);
  }
}

TEST_CASE("import: the committed recipes and their plans are right") {
  std::vector<std::string> arguments = {"check"};
  for (const import::MegatronRun& run : import::MegatronRuns()) {
    arguments.push_back(SourcePath("recipes/megatron/" + run.recipe + ".toml"));
  }
  const CommandResult check = RunCommand(AddCheckCommand, arguments);
  CHECK_MESSAGE(check.exit_code == 0, check.output);
}

TEST_CASE("import: extends names the cluster as the recipe's folder sees it") {
  const recipe::TemporaryFolder folder;
  const std::string script = SourcePath("tests/import/megatron/gpt_2.7b.sh");
  fs::create_directories(folder.Path("a/b"));
  folder.Write("c/h100.toml", "[cluster]\ndevice = \"h100\"\n");
  const std::string out = folder.Path("a/b/r.toml");
  CHECK(Import({script, "--out", out, "--cluster", folder.Path("c/h100.toml")}).exit_code == 0);
  CHECK(recipe::ReadText(out).find("extends = [\"../../c/h100.toml\"]\n") != std::string::npos);
}

TEST_CASE("import: without --out and --cluster the recipe is printed, and names a device") {
  const CommandResult result = Import({SourcePath("tests/import/megatron/gpt_2.7b.sh")});
  CHECK(result.exit_code == 0);
  CHECK(result.output.find("\n[cluster]\ndevice = \"h100\"") != std::string::npos);
  CHECK(result.output.find("extends") == std::string::npos);
}

TEST_CASE("import: what is left out is told on standard error, and counted in the last line") {
  const recipe::TemporaryFolder folder;
  const std::string script =
      folder.Write("run.sh",
                   "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 \\\n"
                   "  --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --lr 1e-3 \\\n"
                   "  --micro-batch-size 2 --data-path d --train-iters 10 --vocab-size 300 \\\n"
                   "  --exit-interval 5 --num-workers 2\n");
  const std::string told =
      script +
      ":4:3: warning: --exit-interval has no key: a run ends when it is as long as the recipe says, or at a "
      "signal, and saves before it ends\n      --exit-interval 5 --num-workers 2\n      ^~~~~~~~~~~~~~~\n"
      "12 flags: 10 imported, 2 without a key (1 of them changes the run)\n";
  CHECK(RunProgram("import megatron " + script + " --out " + folder.Path("r.toml")).output == told);
  const std::string import = "(" ENGINE_BINARY " import megatron " + script;
  CHECK(RunShell(import + " 2>&1 >/dev/null)").output == told);
  CHECK(RunShell(import + " 2>/dev/null)").output == recipe::ReadText(folder.Path("r.toml")));
  const ProgramResult refused =
      RunProgram("import megatron " + script + " --set X=1 --out " + folder.Path("no.toml"));
  CHECK(refused.exit_code == 1);
  CHECK(refused.output.ends_with("\nno recipe: 1 error\n"));
  CHECK(!fs::exists(folder.Path("no.toml")));
}

TEST_CASE("import: failures") {
  const std::string script = SourcePath("tests/import/megatron/gpt3_175b.sh");
  CHECK(Import({}).exit_code == 2);
  CHECK(Import({script}).exit_code == 1);  // NUM_NODES is not known
  CHECK(Import({script, "--set", "NUM_NODES"}).exit_code == 1);
  CHECK(Import({"none.sh"}).exit_code == 1);
  CHECK(Import({SourcePath("tests/import/megatron/gpt_2.7b.sh"), "--cluster", "none.toml"}).exit_code == 1);
  CHECK(Import({SourcePath("tests/import/megatron/gpt_2.7b.sh"), "--out", "/none/r.toml"}).exit_code == 1);
  CHECK(RunCommand(AddImportCommand, {"import"}).exit_code == 2);
  CHECK(Import({"--flags"}).output.find("| `--num-layers` | imported | `model.layers` |") !=
        std::string::npos);
}

}  // namespace engine::cli

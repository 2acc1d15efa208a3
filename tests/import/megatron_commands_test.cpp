// Which command of a script is the training, how it is launched, and what conditions around it come to.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/import/megatron_import.h"
#include "tests/import/megatron_script.h"
#include "tests/recipe/test_files.h"

namespace engine::import {

TEST_CASE("megatron: how many ranks there are") {
  const auto world = [](const std::string& launcher, const Flags& variables = {}) {
    const MegatronImport import = Import(Script({}, launcher), variables);
    if (!import.ok()) return Messages(import.diagnostics);
    const recipe::Recipe recipe = recipe::LoadText(import.recipe, "a.toml").recipe;
    return std::to_string(recipe.world_size()) + " = " + std::to_string(recipe.cluster.nodes) + " × " +
           std::to_string(recipe.cluster.devices_per_node);
  };
  CHECK(world("torchrun --nproc_per_node=4 --nnodes=2") == "8 = 2 × 4");
  CHECK(world("torchrun --nproc-per-node $((2*2)) --nnodes ${N:-3}") == "12 = 3 × 4");
  CHECK(world("python -m torch.distributed.launch --nproc_per_node 2") == "2 = 1 × 2");
  CHECK(world("python -u -m torch.distributed.run --nproc_per_node 2 --nnodes 2") == "4 = 2 × 2");
  CHECK(world("srun -N 2 --ntasks-per-node=4 python") == "8 = 2 × 4");
  CHECK(world("srun --nodes=2 -n 16 python -u") == "16 = 2 × 8");
  CHECK(world("srun --nodes=2 torchrun --nnodes 2 --nproc_per_node 8") == "16 = 2 × 8");
  CHECK(world("mpirun -np 4 python") == "4 = 0 × 0");
  CHECK(world("python", {{"WORLD_SIZE", "6"}}) == "6 = 0 × 0");
  CHECK(world("#SBATCH --nodes=3\n#SBATCH -n 12\nsrun python") == "12 = 3 × 4");
  CHECK(world("#SBATCH --nodes=3\nexport GPUS=2\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS") ==
        "6 = 3 × 2");
  CHECK(world("srun python") ==
        "1:13: error: srun does not say how many ranks there are | hint: --nodes and --ntasks-per-node of "
        "srun, or in "
        "#SBATCH lines\n");
  CHECK(world("python") ==
        "1:8: error: nothing says how many ranks there are: no torchrun, torch.distributed, srun or mpirun "
        "starts it | "
        "hint: --set WORLD_SIZE=N\n");
  CHECK(world("torchrun --nproc_per_node gpu") ==
        "1:27: error: --nproc_per_node is 'gpu', and must be a number of at least 1 | hint: how many there "
        "are\n");
  CHECK(
      world("torchrun --nnodes $NNODES") ==
      "1:19: error: --nnodes is needed for the number of ranks, but NNODES is not set in this file | hint: "
      "--set "
      "NAME=VALUE gives the script a variable, --set NAME= an empty one, --set 1=VALUE its first argument\n");
}

TEST_CASE("megatron: which command is the training") {
  CHECK(Messages(Import("echo hello\n").diagnostics).find("0:0: error: there is no training command") == 0);
  CHECK(Messages(Import(Script({}) + Script({})).diagnostics)
            .find("this is a second training command; the first is at line 1 | ") != std::string::npos);
  const std::string uncalled = "debug() {\n" + Script({{"--lr", "1"}}) + "}\n";
  CHECK(Import(uncalled + Script({})).ok());
  CHECK(Import(Script({}) + uncalled).ok());
  CHECK(Import(uncalled + "unused() { bash -c \"" + "python x.py --num-layers 2" + "\"; }\n" + Script({}))
            .ok());
  for (const std::string call : {"debug\n", "srun bash -c debug\n", "trap debug EXIT\n", "$1\n"}) {
    CAPTURE(call);
    CHECK(Messages(Import(uncalled + Script({}) + call).diagnostics)
              .find("this is a second training command; the first is at line 2 | ") != std::string::npos);
  }
  CHECK(Messages(Import(uncalled).diagnostics).find("2:1: error: the training command cannot be read: ") ==
        0);
  CHECK(Messages(Import("for i in 1 2; do\n" + Script({}) + "done\n").diagnostics)
            .find("2:1: error: the training command cannot be read: it is run under a condition that is not "
                  "known") == 0);
  CHECK(Messages(Import(Script({{"$EXTRA", ""}})).diagnostics)
            .find("error: flags may be hidden here: EXTRA is not set in this file") != std::string::npos);
  CHECK(Import(Script({{"$EXTRA", ""}}), {{"EXTRA", ""}}).ok());
  CHECK(Messages(Import("torchrun --nproc_per_node 2 pretrain_bert.py --num-layers 2").diagnostics)
            .find("1:29: error: pretrain_bert.py trains another kind of model") == 0);
  CHECK(Messages(Import(Script({}), {{"OTHER", "1"}}).diagnostics) ==
        "0:0: error: --set OTHER has no effect: the script does not read this variable\n");
  CHECK(Messages(Import("A=1\n" + Script({}), {{"A", "2"}}).diagnostics) ==
        "0:0: error: --set A has no effect: the script does not read this variable\n");
  const MegatronImport seed = Import("A=1\n" + Script({{"--seed", "$A"}}), {{"A", "2"}});
  CHECK(recipe::LoadText(seed.recipe, "a.toml").recipe.training.seed == 2);
  CHECK(Messages(Import(Script({}).substr(0, Script({}).size() - 1) + " --lr 2e-3\n").diagnostics)
            .find("warning: --lr is given again later; the last counts") != std::string::npos);
}

TEST_CASE("megatron: idioms of NVIDIA's own scripts") {
  // The flags of train_gpt3_175b_distributed.sh, which names files and no tokenizer.
  std::string script =
      recipe::ReadText(std::string(ENGINE_SOURCE_DIR) + "/tests/import/megatron/gpt3_175b.sh");
  const Flags variables = {{"NUM_NODES", "32"}, {"3", "v.json"}, {"4", "m.txt"}, {"5", "data"}};
  const MegatronImport with = Import(script, variables);
  const std::string type = "    --tokenizer-type GPT2BPETokenizer\n";
  script.replace(script.find(type), type.size(), "");
  const MegatronImport without = Import(script, variables);
  REQUIRE_MESSAGE(without.ok(), Messages(without.diagnostics));
  CHECK(
      Diff(recipe::LoadText(with.recipe, "a.toml").recipe, recipe::LoadText(without.recipe, "b.toml").recipe)
          .empty());

  // The flags of the examples for SLURM.
  std::string flags;
  for (const auto& [flag, value] : kBase) flags += " " + flag + " " + value;
  const std::string slurm =
      "#SBATCH --nodes=2 --ntasks-per-node=4\nDIR=`pwd`\nLOGS=$DIR/logs_$(date +%y)\n"
      "mkdir -p $LOGS\noptions=\"" +
      flags +
      "\"\n"
      "run_cmd=\"python -u ${DIR}/pretrain_gpt.py ${options}\"\n"
      "srun -N 2 --ntasks-per-node 4 -l sh -c \"${run_cmd}\"\n";
  const MegatronImport import = Import(slurm);
  REQUIRE_MESSAGE(import.ok(), Messages(import.diagnostics));
  CHECK(recipe::LoadText(import.recipe, "a.toml").recipe.parallelism.dp == 8);
  std::string elsewhere = slurm;
  elsewhere.replace(elsewhere.find("`pwd`"), 5, "$(dirname $0)");
  CHECK(Messages(Import(elsewhere).diagnostics).find("what $(dirname $0) prints is not known") !=
        std::string::npos);
  CHECK(Import(elsewhere, {{"DIR", "/x"}}).ok());
}

TEST_CASE("megatron: what a loop or a condition sets has a way out, and the reason names it") {
  const std::string loop =
      "DATA=\"\"\nfor p in a b; do DATA=\"$DATA 0.5 /d/$p\"; done\n" + Script({{"--data-path", "$DATA"}});
  CHECK(Messages(Import(loop).diagnostics)
            .find("DATA is set under a condition, in a loop or in a function | hint: "
                  "--set NAME=VALUE") != std::string::npos);
  const MegatronImport import = Import(loop, {{"DATA", "0.3 a 0.7 b"}});
  REQUIRE_MESSAGE(import.ok(), Messages(import.diagnostics));
  CHECK(recipe::LoadText(import.recipe, "a.toml").recipe.data.paths == std::vector<std::string>{"a", "b"});
  const std::string condition =
      "ARGS=\"--seed 7\"\nif [ -n \"$RESUME\" ]; then\n  ARGS=\"$ARGS --ckpt-step 3\"\nfi\n" +
      Script({{"$ARGS", ""}});
  CHECK(Messages(Import(condition).diagnostics)
            .find("ARGS is set under a condition, in a loop or in a function: RESUME is not set in this file "
                  "| hint: "
                  "--set NAME=VALUE gives the script a variable, --set NAME= an empty one") !=
        std::string::npos);
  CHECK(Import(condition, {{"RESUME", ""}}).recipe.find("ckpt-step") == std::string::npos);
  CHECK(Import(condition, {{"RESUME", "yes"}}).recipe.find("# --ckpt-step: no effect") != std::string::npos);
}

TEST_CASE("megatron: a list of flags alone") {
  std::string list;
  for (const auto& [flag, value] : kBase) list += flag + " " + value + "\n";
  const MegatronImport import = Import(list, {{"WORLD_SIZE", "4"}});
  CHECK(Messages(import.diagnostics).empty());
  CHECK(recipe::LoadText(import.recipe, "a.toml").recipe.parallelism.dp == 4);
  CHECK(Messages(Import(list).diagnostics).find("nothing says how many ranks there are") !=
        std::string::npos);
  CHECK(Import("--num-layers=4 \\\n  --lr 1", {{"WORLD_SIZE", "1"}}).diagnostics.size() > 3);
}

}  // namespace engine::import

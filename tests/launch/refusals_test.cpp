// What keeps processes from becoming the ranks of a run: each gives a reason, at once, and all hear it.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "engine/data/indexed_dataset.h"
#include "engine/data/indexed_format.h"
#include "engine/launch/socket.h"
#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::TinyRun;

}  // namespace

TEST_CASE("processes: ranks that are not of one run") {
  const TinyRun tiny;
  // Rank 0, and rank 1 with other arguments or variables; both logs.
  const auto both = [&](const std::string& arguments, const std::string& token, int code0, int code1) {
    const int port = FreePort();
    const std::string common =
        "run " + tiny.recipe + " --set parallelism.dp=2 --join-timeout 1 --out " + tiny.out;
    Background zero(tiny, "0", common, RankVariables(0, 2, port));
    Background one(tiny, "1", common + arguments, RankVariables(1, 2, port, token));
    CHECK_MESSAGE(zero.Wait(10) == code0, zero.log());
    CHECK_MESSAGE(one.Wait(10) == code1, one.log());
    return zero.log() + one.log();
  };
  const std::string rate = both(" --set optimizer.learning_rate=0.02", "t", 5, 1);
  CHECK(Contains(
      rate, "the recipe is not that of rank 0:\n    optimizer.learning_rate: 0.01 on rank 0, 0.02 here"));
  const std::string model = both(" --set model.hidden=32", "t", 5, 5);
  CHECK(Contains(model, " runs another recipe: plan hash "));
  const std::string data = both(" --set data.paths='[\"/nowhere/x\"]'", "t", 5, 1);
  CHECK(Contains(data, ") failed: "));
  CHECK(Contains(data, "/nowhere/x"));
  const std::string token = both("", "other", 5, 5);
  CHECK(
      Contains(token, "rank 1 did not come within 1 s; somebody came with another token, and was refused: "));
  CHECK(Contains(token, ": refused: token: --token-file, or ENGINE_TOKEN, must be the same on all hosts"));
  CHECK(NewestCheckpoint(tiny.out).empty());
  CHECK(!HasOrphans(tiny));
}

namespace {

// A copy of the tiny data set in a folder of its own, with a mask of the loss, all of whose numbers are `counts`, or without one.
std::string FolderWithData(const TinyRun& tiny, const std::string& name, std::optional<std::int32_t> counts) {
  const std::string folder = tiny.folder / name;
  const std::string prefix = folder + "/text_text_document";
  std::filesystem::create_directory(folder);
  for (const char* ending : {".idx", ".bin"})
    std::filesystem::copy_file(tiny.folder / ("text_text_document" + std::string(ending)), prefix + ending);
  if (!counts) return folder;
  const absl::StatusOr<data::IndexedDataset> dataset = data::IndexedDataset::Open(prefix);
  REQUIRE(dataset.ok());
  auto mask = data::IndexedDatasetWriter::Create(data::LossMaskPrefix(prefix), data::TokenType::kU8);
  REQUIRE(mask.ok());
  for (const std::int32_t length : dataset->lengths()) {
    const std::vector<std::int32_t> ones(static_cast<std::size_t>(length), *counts);
    REQUIRE((*mask)->AddDocument({{ones}}).ok());
  }
  REQUIRE((*mask)->Finish().ok());
  return folder;
}

}  // namespace

TEST_CASE("processes: ranks whose files have one name and another content are told which") {
  const TinyRun tiny;
  const std::string common = "run " + tiny.recipe + " --set parallelism.dp=2 --join-timeout 5 --out " +
                             tiny.out + " --set data.paths='[\"text_text_document\"]'";
  // Rank 0 and rank 1, each in a folder of its own; both logs.
  const auto both = [&](const std::string& first, const std::string& second, int code0, int code1) {
    const int port = FreePort();
    Background zero(tiny, "0", common, "-C " + first + " " + RankVariables(0, 2, port));
    Background one(tiny, "1", common, "-C " + second + " " + RankVariables(1, 2, port));
    CHECK_MESSAGE(zero.Wait(10) == code0, zero.log());
    CHECK_MESSAGE(one.Wait(10) == code1, one.log());
    return zero.log() + one.log();
  };
  const std::string ones = FolderWithData(tiny, "ones", 1);
  const std::string none = FolderWithData(tiny, "none", std::nullopt);
  const std::string other = both(ones, FolderWithData(tiny, "zeros", 0), 5, 1);
  const std::string fingerprint = "\\d+ bytes, xxh3_128 [0-9a-f]{32}";
  CHECK_MESSAGE(
      std::regex_search(other, std::regex("rank 1 \\([^)]+\\) failed: the data is not that of rank 0:\n.*"
                                          "data text_text_document_loss_mask.bin: " +
                                          fingerprint + " on rank 0, " + fingerprint + " here")),
      other);
  CHECK_MESSAGE(!Contains(other, "loss_mask.idx"), other);
  CHECK(Contains(both(ones, none, 5, 1), "data text_text_document_loss_mask.idx: "));
  CHECK(Contains(both(none, ones, 5, 1), "data text_text_document_loss_mask.bin: not there on rank 0, "));
  CHECK(NewestCheckpoint(tiny.out).empty());
  both(ones, FolderWithData(tiny, "same", 1), 0, 0);
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("processes: what keeps a rank or a host from joining is heard by the others at once") {
  const TinyRun tiny;
  data::WriteFile(tiny.folder / "token", "secret\n");
  struct Fault {
    std::string launch;     // # is the place
    std::string variables;  // likewise
    std::string arguments;
    int exit_code;
    std::string reason;
  };
  const std::string nodes =
      " --nodes 2 --node-rank # --token-file " + tiny.folder / "token" + " --coordinator 127.0.0.1:@";
  const std::string torchrun = "RANK=# LOCAL_RANK=# WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=@";
  const std::string no_data = " --set data.paths='[\"/nowhere/x\"]'";
  const std::string no_recipe = " --set model.hidden=-1";
  const Fault faults[] = {
      {nodes, "", no_data, 1, R"(node # \([^)]+, pid \d+\) failed: .*/nowhere/x)"},
      {nodes, "", no_recipe, 1, R"(node # \([^)]+, pid \d+\) failed: --set:2:\d+: error: .*-1)"},
      {"", torchrun, no_data, 1, R"(rank # \([^)]+, pid \d+\) failed: .*/nowhere/x)"},
      {"", torchrun, no_recipe, 1, R"(rank # \([^)]+, pid \d+\) failed: --set:2:\d+: error: .*-1)"},
      {"", torchrun, " --set parallelism.tp=2", 2,
       R"(rank # \([^)]+, pid \d+\) failed: torchrun has started 2 processes, but the recipe's layout has 4 ranks)"},
  };
  for (const Fault& fault : faults) {
    for (const int faulty : {0, 1}) {
      const std::string port = std::to_string(FreePort());
      const auto at = [&](const std::string& text, int place) {
        return std::regex_replace(std::regex_replace(text, std::regex("@"), port), std::regex("#"),
                                  std::to_string(place));
      };
      const auto start = [&](int place, const std::string& more) {
        return std::make_unique<Background>(tiny, std::to_string(place),
                                            "run " + tiny.recipe + " --set parallelism.dp=2 --out " +
                                                tiny.out + at(fault.launch, place) + more,
                                            at(fault.variables, place));
      };
      INFO(fault.reason << " at " << faulty);
      const Clock::time_point begin = Clock::now();
      const auto wrong = start(faulty, fault.arguments);
      const auto right = start(1 - faulty, "");
      CHECK_MESSAGE(right->Wait(10) == 5, right->log());
      CHECK_MESSAGE(wrong->Wait(10) == fault.exit_code, wrong->log());
      CHECK_MESSAGE(std::regex_search(right->log(), std::regex(at(fault.reason, faulty))), right->log());
      CHECK(Clock::now() - begin < std::chrono::seconds(5));
    }
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("processes: what is refused before anything starts") {
  const TinyRun tiny;
  const auto refused = [&](const std::string& arguments, int exit_code, const std::string& part,
                           const std::string& environment = "") {
    const ProgramResult result = RunProgram(
        "run " + tiny.recipe + " --set parallelism.dp=2 --out " + tiny.out + " " + arguments, environment);
    INFO(arguments);
    CHECK(result.exit_code == exit_code);
    CHECK(Contains(result.output, part));
    CHECK(!std::filesystem::exists(tiny.out));
  };
  const absl::StatusOr<Descriptor> taken = Listen({"127.0.0.1", 0});
  const std::string port = std::to_string(PortOf(*taken));
  refused("--processes --coordinator 127.0.0.1:" + port, 1,
          "engine run: port " + port + " of 127.0.0.1 is taken by another program; give another one\n");
  refused("--processes --coordinator here", 2, "--coordinator: 'here' is not HOST:PORT");
  refused("--nodes 2", 2, "several nodes need --coordinator HOST:PORT");
  refused(
      "--nodes 2 --node-rank 1 --coordinator 0.0.0.0:29500", 2,
      "--coordinator 0.0.0.0:29500: that is every network of one machine and no way to node 0: give a name "
      "or an address of node 0, as in node0:29500, the same on all nodes",
      "ENGINE_TOKEN=t");
  refused("--nodes 3 --coordinator a:1", 2, "--nodes 3 do not share the recipe's 2 ranks evenly");
  refused("--nodes 2 --min-nodes 1 --max-restarts 1", 2,
          "--min-nodes 1 is not more than half of all 2 hosts: the two halves of a network that is cut could "
          "then both go on; give at least 2");
  refused("--nodes 2 --min-nodes 3", 2, "--min-nodes 3 is more than --nodes 2");
  refused("--nodes 3 --min-nodes 2", 2, "fewer hosts where ranks are started again: --max-restarts N");
  refused("--nodes 2 --node-rank 2", 2, "--node-rank 2 is not below --nodes 2");
  refused("--nodes 2 --coordinator a:1", 2, "several nodes need a token");
  refused("--nodes 2 --coordinator a:1 --token-file /nowhere", 2, "--token-file /nowhere: cannot be read");
  data::WriteFile(tiny.folder / "zero", std::string("\0abc\n", 5));
  data::WriteFile(tiny.folder / "long", std::string(257, 'x'));
  for (const std::string file : {"zero", "long"}) {
    refused("--processes --token-file " + tiny.folder / file, 2,
            "a token is one line of at most 256 printable ASCII characters");
  }
  refused("--processes", 2, "ENGINE_TOKEN: a token is one line", "ENGINE_TOKEN=" + std::string(257, 'x'));
  // Of a run of one process.
  refused("--node-rank 1", 2, "engine run: --node-rank: is for ranks that meet each other");
  refused("--coordinator a:1", 2, "engine run: --coordinator: is for ranks that meet each other");
  refused("--token-file /nowhere", 2, "engine run: --token-file: is for ranks that meet each other");
  refused("--spares 1", 2, "engine run: --spares: is for ranks that meet each other");
  refused("--nodes 1 --spares 1", 2, "engine run: --spares: is for ranks that meet each other");
  refused("--min-nodes 1", 2, "engine run: --min-nodes: is for ranks that meet each other");
  refused("--nodes 1 --min-nodes 2", 2, "engine run: --min-nodes: is for ranks that meet each other");
  for (const std::string processes : {"", "--processes "}) {
    refused(processes + "--share-gpus", 2, "engine run: --share-gpus: is for ranks on GPUs");
    refused(processes + "--no-graphs", 2, "engine run: --no-graphs: is for the CUDA graphs of GPUs");
  }
  for (const std::string option : {"--join-timeout", "--heartbeat-timeout", "--hang-timeout"}) {
    refused("--processes " + option + " nan", 2, option + ": nan is no number");
  }
  refused("--processes --heartbeat-timeout 0", 2, "--heartbeat-timeout: Value 0 not in range");
  refused("--join-timeout 0.2", 2, "torchrun has started 4 processes, but the recipe's layout has 2 ranks",
          "RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  refused("", 2, "engine run: torchrun: MASTER_ADDR is not set", "RANK=0 WORLD_SIZE=2");
  const std::string torchrun = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port;
  refused("--processes", 2, "torchrun has started 2 processes, and each would start ranks of its own",
          torchrun);
  refused("--node-rank 1", 2, "engine run: --node-rank: torchrun has started the ranks", torchrun);
  refused("--coordinator a:1", 2, "engine run: --coordinator: torchrun has started the ranks", torchrun);
  refused("--spares 1", 2, "engine run: --spares: torchrun has started the ranks", torchrun);
  refused("--min-nodes 1", 2, "engine run: --min-nodes: torchrun has started the ranks", torchrun);
  refused("--token-file /nowhere", 2, "--token-file /nowhere: cannot be read", torchrun);
  refused("", 1,
          "engine run: rank 0's address, by torchrun or ENGINE_COORDINATOR: port " + port +
              " of 127.0.0.1 is taken",
          torchrun);
  refused("", 1, "engine run: SLURM: localhost, where rank 0 is, is ",
          "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=" +
              std::to_string(getpid()) + " SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE='1(x2)'");
  // The recipe's own mistakes are told once.
  const ProgramResult mistake = RunProgram("run " + tiny.recipe +
                                           " --processes --set parallelism.dp=2 --set "
                                           "data.paths='[\"/nowhere/x\"]' --out " +
                                           tiny.out);
  CHECK(mistake.exit_code == 1);
  CHECK(Contains(mistake.output, "/nowhere/x"));
  CHECK(mistake.output.find("rank 1: ") == std::string::npos);
}

TEST_CASE("processes: that rank 0 listens on every network is said") {
  const TinyRun tiny;
  for (const std::string host : {"0.0.0.0", "[::]", "127.0.0.1"}) {
    const std::string at = host + ":" + std::to_string(FreePort());
    const ProgramResult run = RunProgram("run " + tiny.recipe + " --set parallelism.dp=2 --processes --out " +
                                         tiny.out + "_" + host.substr(1, 2) + " --coordinator " + at);
    CHECK_MESSAGE(run.exit_code == 0, run.output);
    CHECK((run.output.find("note: --coordinator " + at +
                           ": rank 0 listens on every network of this machine. ") != std::string::npos) ==
          (host != "127.0.0.1"));
  }
}

TEST_CASE("processes: ranks that a launcher has started show each other the secret of --token-file") {
  const TinyRun tiny;
  data::WriteFile(tiny.folder / "ours", "ours\n");
  data::WriteFile(tiny.folder / "theirs", "theirs\n");
  for (const std::string other : {"ours", "theirs"}) {
    INFO(other);
    const std::string variables =
        " WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(FreePort());
    const std::string common = "run " + tiny.recipe + " --set parallelism.dp=2 --join-timeout 2 --out " +
                               tiny.out + other + " --token-file ";
    Background zero(tiny, "0", common + tiny.folder / "ours", "RANK=0 LOCAL_RANK=0" + variables);
    Background one(tiny, "1", common + tiny.folder / other, "RANK=1 LOCAL_RANK=1" + variables);
    const int code = other == "ours" ? 0 : 5;
    CHECK_MESSAGE(zero.Wait(20) == code, zero.log());
    CHECK_MESSAGE(one.Wait(20) == code, one.log());
    CHECK(Contains(one.log(), ": refused: token: ") == (code != 0));
  }
}

}  // namespace engine::launch

// Exchange by copy engines between processes with a GPU each, against the CPU's collectives, bit by bit. The
// processes are runs of this program with one of the skipped test cases below; they meet in a folder.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/data/temp_dir.h"
#include "tests/gpu/push_rank.h"

namespace engine::gpu_test {
namespace {

using backend::cpu::Case;
using graph::Reduction;
using plan::Collective;

int Gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

constexpr DType kSummed[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

// Sizes that are not whole words, and one that takes a while, of each form.
void AddFixed(Rank* rank, DType dtype) {
  const std::int64_t n = rank->ranks();
  constexpr Reduction kSum = Reduction::kSum;
  rank->Add(Along(n, Collective::kAllReduce, kSum, {7, 13, 3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllReduce, kSum, {16}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllReduce, kSum, {3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllReduce, kSum, {131'071}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kReduceScatter, kSum, {n, 13, 3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kReduceScatter, kSum, {5, n * 3, 7}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kReduceScatter, kSum, {4, n * 64, 160}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {n, 13, 3}, 0, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {5, n * 3, 7}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {3, 5, n}, 2, 0), dtype);
  rank->Add(Along(n, Collective::kAllGather, kSum, {4, n * 64, 160}, 1, 0), dtype);
  rank->Add(Along(n, Collective::kAllToAll, kSum, {n * 3, n * 5, 7}, 0, 1), dtype);
  rank->Add(Along(n, Collective::kAllToAll, kSum, {2, n * 32, n * 4, 40}, 1, 2), dtype);
}

void AddDirect(Rank* rank, DType dtype) {
  if (rank->ranks() != 2) return;
  constexpr Reduction kSum = Reduction::kSum;
  rank->Add(Along(2, Collective::kAllReduce, kSum, {7, 13, 3}, 0, 0), dtype, true);
  rank->Add(Along(2, Collective::kAllReduce, kSum, {131'072}, 0, 0), dtype, true);
  rank->Add(Along(2, Collective::kReduceScatter, kSum, {2, 13, 3}, 0, 0), dtype, true);
  rank->Add(Along(2, Collective::kReduceScatter, kSum, {512, 160}, 0, 0), dtype, true);
}

void AddRandom(Rank* rank) {
  std::mt19937_64 random(17);  // the same cases on every rank
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll}) {
    for (std::size_t i = 0; i < 8; ++i) {
      Case c = backend::cpu::DrawCase(collective, random, rank->ranks());
      while (c.reduction != Reduction::kSum) c = backend::cpu::DrawCase(collective, random, rank->ranks());
      rank->Add(c, kSummed[i % std::size(kSummed)]);
    }
  }
}

// Now and then up to 2 ms.
std::function<int(bool)> AtRandom(std::int64_t rank) {
  return [random = std::mt19937(static_cast<unsigned>(rank))](bool) mutable {
    return random() % 4 == 0 ? static_cast<int>(random() % 2000) : 0;
  };
}

struct Setting {
  int ranks = 2;
  std::string left_out = {};  // a meeting of ranks (PushOptions): ready, release
  std::string hidden = {};    // from rank 0, of what ranks tell each other
};

// This program again as that many ranks, with that test case alone. What all of them wrote.
cli::ProgramResult RunRanks(const std::string& test_case, const Setting& setting) {
  const data::TempDir folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = fmt::format(
      "export CUDA_DEVICE_MAX_CONNECTIONS=32 ENGINE_PUSH_RANKS={} ENGINE_PUSH_LEFT_OUT={} "
      "ENGINE_PUSH_HIDDEN={} "
      "ENGINE_PUSH_FOLDER='{}'; failed=0; ranks=; ",
      setting.ranks, setting.left_out, setting.hidden, folder.path());
  for (int rank = 0; rank < setting.ranks; ++rank) {
    command += fmt::format(
        "ENGINE_PUSH_RANK={} timeout -k 5 150 '{}' --no-skip --test-case='{}' > '{}/{}.txt' 2>&1 & "
        "ranks=\"$ranks $!\"; ",
        rank, self, test_case, folder.path(), rank);
  }
  command += fmt::format("for rank in $ranks; do wait $rank || failed=1; done; cat '{}'/*.txt; exit $failed",
                         folder.path());
  return cli::RunShell(command);
}

constexpr const char* kEveryForm = "gpu child: every pushed conversion";
constexpr const char* kTransfers = "gpu child: transfers between two stages";
constexpr const char* kSlowPeer = "gpu child: pushes to a slow peer";
constexpr const char* kSlowReader = "gpu child: direct sums with a slow peer";
constexpr const char* kByNccl = "exchange by NCCL, not by copy engines";

bool Skipped(int needed) {
  if (Gpus() >= needed) return false;
  MESSAGE("skipped: " << needed << " GPUs are needed, this machine has " << Gpus());
  return true;
}

}  // namespace

TEST_CASE("gpu child: every pushed conversion" * doctest::skip()) {
  Rank rank;
  for (const DType dtype : kSummed) AddFixed(&rank, dtype);
  for (const std::int64_t size : {1, 1001, 40'000}) {
    rank.Add(Along(rank.ranks(), Collective::kAllReduce, Reduction::kLogSumExp, {size}, 0, 0), DType::kF32);
  }
  AddRandom(&rank);
  for (const DType dtype : kSummed) AddDirect(&rank, dtype);
  rank.Connect();
  const auto delay = AtRandom(rank.rank());
  for (const auto& trial : rank.trials()) {
    if (!trial->takes_part) continue;
    for (const bool recorded : {false, true}) {
      const int rounds = recorded ? kRounds : 7;
      const int wrong = rank.WrongRounds(*trial, rounds, recorded, delay);
      CHECK_MESSAGE(wrong == 0, trial->name() << (recorded ? ", replayed: " : ": ") << wrong << " of "
                                              << rounds << " rounds are wrong");
    }
  }
  rank.CheckOneGraph(delay);
}

TEST_CASE("gpu child: transfers between two stages" * doctest::skip()) {
  Rank rank(/*stages=*/true);
  rank.PrepareTransfers();
  rank.Connect();
  const auto delay = AtRandom(rank.rank());
  for (const bool recorded : {false, true}) {
    const int wrong = rank.WrongTransfers(kRounds, recorded, delay);
    CHECK_MESSAGE(wrong == 0, (recorded ? "replayed: " : "launched: ") << wrong << " rounds are wrong");
  }
}

// Rank 1 reads what it was given late: until then nobody may push the next.
TEST_CASE("gpu child: pushes to a slow peer" * doctest::skip()) {
  Rank rank;
  rank.Add(Along(rank.ranks(), Collective::kAllGather, Reduction::kSum, {rank.ranks(), 1 << 17}, 0, 0),
           DType::kF32);
  rank.Connect();
  const bool slow = rank.rank() == 1;
  const int wrong =
      rank.WrongRounds(*rank.trials()[0], 20, false, [&](bool before) { return slow && !before ? 3000 : 0; });
  CHECK_MESSAGE(wrong == 0, wrong << " of 20 rounds are wrong on rank " << rank.rank());
}

// Rank 1 makes its part late, and reads the other's late.
TEST_CASE("gpu child: direct sums with a slow peer" * doctest::skip()) {
  Rank rank;
  rank.Add(Along(2, Collective::kAllReduce, Reduction::kSum, {1 << 17}, 0, 0), DType::kF32, true);
  rank.Connect();
  const bool slow = rank.rank() == 1;
  const int wrong = rank.WrongRounds(*rank.trials()[0], 20, false, [&](bool) { return slow ? 3000 : 0; });
  CHECK_MESSAGE(wrong == 0, wrong << " of 20 rounds are wrong on rank " << rank.rank());
}

TEST_CASE("gpu push: two ranks get what the CPU's collectives give, launched and replayed") {
  if (Skipped(2)) return;
  const cli::ProgramResult result = RunRanks(kEveryForm, {});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK_MESSAGE(result.output.find(kByNccl) == std::string::npos, result.output);
}

TEST_CASE("gpu push: two stages of a pipeline, pushed and by NCCL") {
  if (Skipped(2)) return;
  for (const char* hidden : {"", "push/memory/1"}) {
    const cli::ProgramResult result = RunRanks(kTransfers, {.hidden = hidden});
    CHECK_MESSAGE(result.exit_code == 0, result.output);
    CHECK(cli::Contains(result.output, "1 passed"));
    CHECK((result.output.find(kByNccl) != std::string::npos) == (*hidden != '\0'));
  }
}

TEST_CASE("gpu push: more than two ranks add up in parts") {
  if (Skipped(3)) return;
  const cli::ProgramResult result = RunRanks(kEveryForm, {.ranks = std::min(Gpus(), 4)});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK_MESSAGE(result.output.find(kByNccl) == std::string::npos, result.output);
}

TEST_CASE("gpu push: more than two ranks add up in order of rank by NCCL, too") {
  if (Skipped(3)) return;
  const cli::ProgramResult result =
      RunRanks(kEveryForm, {.ranks = std::min(Gpus(), 4), .hidden = "push/memory/1"});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK(cli::Contains(result.output, kByNccl));
}

TEST_CASE("gpu push: a peer is pushed to when it is ready, and would get wrong numbers else") {
  if (Skipped(2)) return;
  cli::ProgramResult result = RunRanks(kSlowPeer, {});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  result = RunRanks(kSlowPeer, {.left_out = "ready"});
  CHECK(result.exit_code != 0);
  CHECK(cli::Contains(result.output, "of 20 rounds are wrong on rank 1"));
}

TEST_CASE("gpu push: ranks meet before and after the reader of a direct sum, and get wrong numbers else") {
  if (Skipped(2)) return;
  cli::ProgramResult result = RunRanks(kSlowReader, {});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  result = RunRanks(kSlowReader, {.left_out = "ready"});  // rank 0 reads a part that is not there yet
  CHECK(result.exit_code != 0);
  CHECK(cli::Contains(result.output, "of 20 rounds are wrong on rank 0"));
  result = RunRanks(kSlowReader, {.left_out = "release"});  // … and overwrites one that is still wanted
  CHECK(result.exit_code != 0);
  CHECK(cli::Contains(result.output, "of 20 rounds are wrong on rank 1"));
}

TEST_CASE("gpu push: ranks that do not reach each other's memory exchange by NCCL, all of them") {
  if (Skipped(2)) return;
  const cli::ProgramResult result = RunRanks(kEveryForm, {.hidden = "push/memory/1"});
  CHECK_MESSAGE(result.exit_code == 0, result.output);
  CHECK(cli::Contains(result.output, "1 passed"));
  CHECK(cli::Contains(result.output,
                      fmt::format("note: ranks 0, 1 {}: rank 0 does not reach the memory of rank 1: it "
                                  "cannot share its memory",
                                  kByNccl)));
}

}  // namespace engine::gpu_test

// Runs whose ranks are processes, through the program: the same numbers as with threads, and an end in
// bounded time, with a reason and without orphans, whatever happens to one of them.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/launch/socket.h"
#include "tests/cli/tiny_run.h"
#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::RunShell;
using cli::TinyRun;

struct Layout {
  const char* name;
  int ranks;
  std::string settings;
};
const Layout kLayouts[] = {
    {"dp2", 2, " --set parallelism.dp=2"},
    {"tp2", 2, " --set parallelism.tp=2"},
    {"pp2", 2, " --set parallelism.pp=2"},
    {"cp2", 2, " --set parallelism.cp=2"},
    {"dp2 pp2, ZeRO", 4,
     " --set parallelism.dp=2 --set parallelism.pp=2 --set training.micro_batch=1 --set "
     "parallelism.zero_stage=1"}};

// Iteration, loss, norm and rate of each line, as they are written: equal texts are equal bits. Lines of
// checkpoints have the time alone.
std::string Numbers(const std::string& out) {
  std::ifstream file(out + "/metrics.jsonl");
  std::string numbers;
  for (std::string line; std::getline(file, line);) {
    if (line.find("save_seconds") != std::string::npos) continue;
    const std::size_t time = line.find("\"timestamp\"");
    line.erase(time, line.find(',', time) + 1 - time);
    numbers += line.substr(0, line.find(",\"elapsed_ms\"")) + "\n";
  }
  return numbers;
}

// The events of a run's TensorBoard file that have histograms, without the time with which each begins
// (engine/metrics/event_file.h).
std::vector<std::string> Histograms(const std::string& out) {
  std::vector<std::string> events;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/tensorboard")) {
    if (!entry.is_regular_file()) continue;
    const std::string bytes = data::ReadFile(entry.path());
    for (std::size_t at = 0; at + 16 <= bytes.size();) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof(length));
      const std::string event = bytes.substr(at + 12, length);
      if (event.find("gradients/final_norm.weight") != std::string::npos) events.push_back(event.substr(9));
      at += length + 16;
    }
  }
  return events;
}

// Name to bytes of the newest checkpoint's shards.
std::map<std::string, std::string> Shards(const std::string& out, const std::string& iteration) {
  std::map<std::string, std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints/" + iteration)) {
    if (entry.path().filename().string().starts_with("rank_"))
      shards[entry.path().filename()] = data::ReadFile(entry.path());
  }
  return shards;
}

}  // namespace

TEST_CASE("processes: every layout gives the bits that it gives with threads") {
  const TinyRun tiny;
  for (const Layout& layout : kLayouts) {
    INFO(std::string(layout.name));
    const std::string threads = tiny.out + "_threads_" + std::string(layout.name).substr(0, 3);
    const std::string processes = tiny.out + "_processes_" + std::string(layout.name).substr(0, 3);
    const std::string common = "run " + tiny.recipe + " --threads 2" + layout.settings +
                               " --set evaluation.interval=8 --set evaluation.iterations=1 "
                               "--set 'logging.sinks=[\"tensorboard\"]' --set logging.histogram_interval=4";
    const std::string suffix = layout.ranks == 4 ? "_4" : "";
    const ProgramResult one = RunProgram(common + " --out " + threads + suffix);
    REQUIRE_MESSAGE(one.exit_code == 0, one.output);
    const ProgramResult many = RunProgram(common + " --processes --out " + processes + suffix);
    REQUIRE_MESSAGE(many.exit_code == 0, many.output);
    const std::string numbers = Numbers(threads + suffix);
    CHECK(std::count(numbers.begin(), numbers.end(), '\n') == 9);
    CHECK(Numbers(processes + suffix) == numbers);
    const std::vector<std::string> histograms = Histograms(threads + suffix);
    CHECK(histograms.size() == 2);
    CHECK(Histograms(processes + suffix) == histograms);
    CHECK(Shards(processes + suffix, "iteration_0000008") == Shards(threads + suffix, "iteration_0000008"));
    CHECK(RunProgram("checkpoint info --verify " + processes + suffix + "/checkpoints/iteration_0000008")
              .exit_code == 0);
  }
}

TEST_CASE("processes: they go back together, to the bits of threads, and compare their weights") {
  const TinyRun tiny;
  // A norm is never so small: each iteration is bad once there is something to compare it with. The last one is compared twice over.
  const std::string common =
      "run " + tiny.recipe +
      " --threads 2 --set parallelism.dp=2 --set training.iterations=9 --set "
      "evaluation.interval=2 --set evaluation.iterations=1 --set guard.hash_interval=3 "
      "--set guard.on_spike=rewind --set guard.spike_window=3 --set guard.spike_loss=0 "
      "--set guard.spike_grad_norm=1e-6 --set guard.max_rewinds=";
  // Iterations 1 to 4 are left out, then 5 to 8: what is left has no window.
  const ProgramResult one = RunProgram(common + "2 --out " + tiny.out + "_threads");
  REQUIRE_MESSAGE(one.exit_code == 0, one.output);
  const ProgramResult many = RunProgram(common + "2 --processes --out " + tiny.out);
  REQUIRE_MESSAGE(many.exit_code == 0, many.output);
  CHECK_MESSAGE(Contains(many.output, "leaving out iterations 5 to 8 (rewind 2 of at most 2)"), many.output);
  CHECK(Numbers(tiny.out) == Numbers(tiny.out + "_threads"));
  CHECK(Shards(tiny.out, "iteration_0000009") == Shards(tiny.out + "_threads", "iteration_0000009"));
  const ProgramResult ended = RunProgram(common + "1 --processes --out " + tiny.out + "_ended");
  CHECK(ended.exit_code == 1);
  CHECK_MESSAGE(Contains(ended.output, "the training has gone back as often as guard.max_rewinds 1 allows"),
                ended.output);
}

TEST_CASE(
    "a log line of several ranks ends with the slowest, of threads and of processes; metrics have all") {
  const TinyRun tiny;
  const std::regex slowest(
      R"( iteration +(\d+)/ +8 \|.*\| elapsed time per iteration \(ms\): ([\d.]+) \|.*\| memory: [^|]+\| )"
      R"(slowest rank: (\d) \(([\d.]+) ms of ([\d.]+)\) \|)");
  const std::string evaluated = " --set evaluation.interval=3 --set evaluation.iterations=1";
  const std::string hows[] = {evaluated, evaluated + " --processes",
                              " --set checkpoint.interval=0 --processes"};
  for (const std::string& how : hows) {
    INFO("how:" << how);
    const std::string out = tiny.out + std::to_string(&how - hows);
    const ProgramResult run = RunProgram("run " + tiny.recipe + how + " --out " + out +
                                         " --set parallelism.dp=2 --set parallelism.tp=2 --set "
                                         "logging.interval=3");
    REQUIRE_MESSAGE(run.exit_code == 0, run.output);
    std::map<int, std::vector<double>> busy_ms;
    std::vector<int> iterations;
    std::vector<double> elapsed_ms = {0};  // by iteration, which count from 1
    std::istringstream metrics(data::ReadFile(out + "/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (!json.contains("loss")) {
        CHECK(json["iteration"] == iterations.size());
        continue;
      }
      iterations.push_back(json["iteration"]);
      elapsed_ms.push_back(json["elapsed_ms"]);
      if (json.contains("rank_busy_ms")) json["rank_busy_ms"].get_to(busy_ms[iterations.back()]);
    }
    CHECK((iterations == std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}));
    std::vector<int> logged;
    std::istringstream log(run.output);
    for (std::string line; std::getline(log, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, slowest)) continue;
      const int first = logged.empty() ? 1 : logged.back() + 1;  // that the line tells of
      const int last = logged.emplace_back(std::stoi(match[1]));
      const double sum = std::accumulate(elapsed_ms.begin() + first, elapsed_ms.begin() + last + 1, 0.0);
      CHECK(std::abs(std::stod(match[2]) - sum / (last + 1 - first)) <= 0.051);
      const std::vector<double>& times = busy_ms[last];
      REQUIRE(times.size() == 4);
      const auto most = std::max_element(times.begin(), times.end());
      CHECK(std::stoi(match[3]) == most - times.begin());
      CHECK(std::abs(std::stod(match[4]) - *most) <= 0.051);
      CHECK(std::abs(std::stod(match[5]) - elapsed_ms[static_cast<std::size_t>(last)]) <= 0.051);
      CHECK(*std::min_element(times.begin(), times.end()) > 0);
    }
    CHECK((logged == std::vector<int>{1, 3, 6, 8}));
    CHECK(busy_ms.size() == 4);
  }
  const ProgramResult alone = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  CHECK(alone.exit_code == 0);
  CHECK(alone.output.find("slowest") == std::string::npos);
  CHECK(data::ReadFile(tiny.out + "/metrics.jsonl").find("rank_busy_ms") == std::string::npos);
}

TEST_CASE("each rank of a run writes its profile, and one that cannot ends no run") {
  const TinyRun tiny;
  for (const std::string how : {"", " --processes"}) {
    INFO("how:" << how);
    const std::string run = "run " + tiny.recipe + " --set parallelism.dp=2 --profile 1" + how + " --out ";
    const std::string out = tiny.out + (how.empty() ? "_threads" : "_processes");
    const ProgramResult profiled = RunProgram(run + out);
    REQUIRE_MESSAGE(profiled.exit_code == 0, profiled.output);
    for (const char* name : {"profile.txt", "trace.json", "profile-1.txt", "trace-1.json",
                             "traces/rank-0.json", "traces/rank-1.json"})
      CHECK_MESSAGE(std::filesystem::file_size(out + "/" + name) > 0, name);
    CHECK(!std::filesystem::exists(out + "/profile-2.txt"));
    CHECK(Contains(data::ReadFile(out + "/trace-1.json"), "measured, rank 1, stage 0"));
    std::filesystem::create_directories(out + "_taken/profile-1.txt");  // a folder of that name
    const ProgramResult taken = RunProgram(run + out + "_taken");
    CHECK_MESSAGE(taken.exit_code == 0, taken.output);
    CHECK_MESSAGE(Contains(taken.output, "note: "), taken.output);
    CHECK_MESSAGE(Contains(taken.output, "profile-1.txt"), taken.output);
  }
}

TEST_CASE("processes: a checkpoint of processes is resumed by threads and by processes of another layout") {
  const TinyRun tiny;
  const std::string dp2 = " --set parallelism.dp=2";
  REQUIRE(RunProgram("run " + tiny.recipe + dp2 + " --out " + tiny.out + "_whole").exit_code == 0);
  REQUIRE(RunProgram("run " + tiny.recipe + dp2 + " --processes --out " + tiny.out).exit_code == 0);
  // As after an end at iteration 4.
  std::filesystem::remove_all(tiny.out + "/checkpoints/iteration_0000008");
  std::filesystem::copy(tiny.out, tiny.out + "_2", std::filesystem::copy_options::recursive);
  std::filesystem::copy(tiny.out, tiny.out + "_3", std::filesystem::copy_options::recursive);
  const ProgramResult threads = RunProgram("run " + tiny.recipe + dp2 + " --out " + tiny.out);
  CHECK(threads.exit_code == 0);
  CHECK(Contains(threads.output, "after iteration 4\n"));
  CHECK(Numbers(tiny.out) == Numbers(tiny.out + "_whole"));
  const ProgramResult again =
      RunProgram("run " + tiny.recipe + dp2 + " --processes --out " + tiny.out + "_2");
  CHECK(again.exit_code == 0);
  CHECK(Contains(again.output, "after iteration 4\n"));
  CHECK(Numbers(tiny.out + "_2") == Numbers(tiny.out + "_whole"));
  const ProgramResult other =
      RunProgram("run " + tiny.recipe + " --set parallelism.pp=2 --processes --out " + tiny.out + "_3");
  CHECK(other.exit_code == 0);
  CHECK(Contains(other.output, "changed since the checkpoint: parallelism.dp: 2 → 1"));
  const ProgramResult done = RunProgram("run " + tiny.recipe + dp2 + " --processes --out " + tiny.out + "_2");
  CHECK(done.exit_code == 0);
  CHECK(Contains(done.output, "so there is nothing to train"));
}

TEST_CASE("processes: a signal to the supervisor, or to one rank, stops all after the same iteration") {
  const TinyRun tiny;
  for (const bool to_one : {false, true}) {
    const std::string out = tiny.out + (to_one ? "_one" : "_all");
    Background run(tiny, "log",
                   "run " + tiny.recipe + " --set parallelism.dp=2 --processes --out " + out +
                       " --set training.iterations=200000 --set checkpoint.interval=0");
    REQUIRE_MESSAGE(WaitForMetrics(out, 1500), run.log());
    const std::vector<pid_t> ranks = run.children();
    REQUIRE(ranks.size() == 2);
    kill(to_one ? ranks[1] : run.pid(), SIGTERM);
    // They save, and sync that to a disk on which others write: so the whole test takes 5 s instead of 0.8.
    CHECK_MESSAGE(run.Wait(60) == 0, run.log());
    CHECK(Contains(run.log(), "stopped by a signal after iteration "));
    const ProgramResult resumed =
        RunProgram("run " + tiny.recipe + " --out " + out + " --set training.iterations=1");
    CHECK(Contains(resumed.output, "resumed from " + out + "/checkpoints/iteration_"));
  }
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("processes: a rank is killed at any moment") {
  const TinyRun tiny;
  const unsigned first_seed = 20260;
  MESSAGE("20 seeds from ", first_seed);
  for (unsigned seed = first_seed; seed < first_seed + 20; ++seed) {
    std::mt19937 random(seed);
    const bool late = seed % 2 == 1;  // in training, or before it
    const int wait_ms = std::uniform_int_distribution<int>(0, 200)(random);
    const int rank = std::uniform_int_distribution<int>(0, 1)(random);
    INFO("seed " << seed << ": rank " << rank << " after " << wait_ms << " ms"
                 << (late ? " of training" : ""));
    std::error_code error;
    const std::uintmax_t metrics = std::filesystem::file_size(tiny.out + "/metrics.jsonl", error);
    Background run(tiny, "log",
                   "run " + tiny.recipe + " --set parallelism.dp=2 --threads 2 --processes --out " +
                       tiny.out + kEndless);
    for (int i = 0; i < 2000 && run.children().size() < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (late) REQUIRE(WaitForMetrics(tiny.out, (error ? 0 : metrics) + 150));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    const std::vector<pid_t> ranks = run.children();
    REQUIRE_MESSAGE(ranks.size() == 2, run.log());
    kill(ranks[rank], SIGKILL);
    const Clock::time_point begin = Clock::now();
    CHECK_MESSAGE(run.Wait(15) == 128 + SIGKILL, run.log());
    CHECK(Clock::now() - begin < std::chrono::seconds(10));
    const std::string log = run.log();
    const std::string verdict = "engine run: rank " + std::to_string(rank) + " (pid " +
                                std::to_string(ranks[rank]) + ") was killed by signal 9 (Killed)\n";
    CHECK(Contains(log, verdict));
    CHECK_MESSAGE(log.find(verdict) == log.find("engine run: "), log);  // before what the other one says
    CHECK(!HasOrphans(tiny));
    const std::string newest = NewestCheckpoint(tiny.out);
    if (newest.empty()) continue;
    const ProgramResult whole = RunProgram("checkpoint info --verify " + tiny.out + "/checkpoints/" + newest);
    CHECK_MESSAGE(whole.exit_code == 0, whole.output);
  }
  CHECK(!NewestCheckpoint(tiny.out).empty());  // some were killed late enough
}

TEST_CASE("processes: a rank that stands still as a whole is lost") {
  const TinyRun tiny;
  Background run(tiny, "log",
                 "run " + tiny.recipe +
                     " --set parallelism.dp=2 --processes --heartbeat-timeout 0.8 "
                     "--out " +
                     tiny.out + kEndless);
  REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 1500), run.log());
  const std::vector<pid_t> ranks = run.children();
  REQUIRE(ranks.size() == 2);
  kill(ranks[1], SIGSTOP);
  CHECK_MESSAGE(run.Wait(14) == 5, run.log());
  CHECK(Contains(run.log(), "engine run: rank 1 ("));
  CHECK(Contains(run.log(), "pid " + std::to_string(ranks[1]) + ") was lost: not heard of for 0.8 s\n"));
  CHECK(
      Contains(run.log(), "engine run: rank 1 (pid " + std::to_string(ranks[1]) + ") did not end by itself"));
  CHECK(!HasOrphans(tiny));
  CHECK(RunProgram("checkpoint info --verify " + tiny.out + "/checkpoints/" + NewestCheckpoint(tiny.out))
            .exit_code == 0);
}

TEST_CASE("processes: of a run that hangs, rank 0 stays to tell why, and ends by itself") {
  const TinyRun tiny;
  Background run(
      tiny, "log",
      "run " + tiny.recipe +
          " --set parallelism.dp=4 --set training.micro_batch=1 --processes --hang-timeout 1 --out " +
          tiny.out + kEndless + " --set checkpoint.interval=0");  // saving has no limit
  REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 1500), run.log());
  const std::vector<pid_t> ranks = run.children();
  REQUIRE(ranks.size() == 4);
  kill(ranks[3], SIGSTOP);
  CHECK_MESSAGE(run.Wait(20) == 5, run.log());
  const auto ended = [&](size_t rank) {
    const std::string pid = std::to_string(ranks[rank]);
    return run.log().find("rank " + std::to_string(rank) + " (pid " + pid + ") did not end by itself") !=
           std::string::npos;
  };
  CHECK_MESSAGE(ended(3), run.log());
  CHECK_MESSAGE(!ended(0), run.log());
  CHECK(!HasOrphans(tiny));
}

TEST_CASE("processes: launchers that start the ranks themselves") {
  const TinyRun tiny;
  const int port = FreePort();
  const auto start = [&](const std::string& out, int rank, const std::string& environment) {
    return std::make_unique<Background>(
        tiny, std::to_string(rank),
        "run " + tiny.recipe + " --set parallelism.tp=2 --threads 2 --out " + tiny.out + out, environment);
  };
  const std::string numbers = [&] {
    const ProgramResult threads =
        RunProgram("run " + tiny.recipe + " --set parallelism.tp=2 --threads 2 --out " + tiny.out);
    REQUIRE(threads.exit_code == 0);
    return Numbers(tiny.out);
  }();
  const std::string launchers[] = {
      "RANK=# LOCAL_RANK=# WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
          std::to_string(port),
      "SLURM_PROCID=# SLURM_LOCALID=# SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=" +
          std::to_string(getpid()) + " SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2",
      "OMPI_COMM_WORLD_RANK=# OMPI_COMM_WORLD_LOCAL_RANK=# OMPI_COMM_WORLD_SIZE=2 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 "
      "PMIX_NAMESPACE=test-" +
          std::to_string(getpid())};
  int number = 0;
  for (const std::string& launcher : launchers) {
    INFO(launcher);
    const std::string out = "_" + std::to_string(number++);
    std::vector<std::unique_ptr<Background>> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(start(out, rank, std::regex_replace(launcher, std::regex("#"), std::to_string(rank))));
    }
    for (const auto& rank : ranks) CHECK_MESSAGE(rank->Wait(20) == 0, rank->log());
    CHECK(Numbers(tiny.out + out) == numbers);
  }
}

// A test of its own for ctest ("hosts"), which says that it is skipped where namespaces cannot be made.
TEST_CASE("hosts: two of them, as network namespaces" * doctest::skip()) {
  const std::string a = "engine_a" + std::to_string(getpid());
  const std::string b = "engine_b" + std::to_string(getpid());
  const std::string make = "ip netns add " + a + " && ip netns add " + b + " && ip -n " + a +
                           " link add veth0 type veth peer name veth0 netns " + b + " && ip -n " + a +
                           " addr add 10.99.0.1/24 dev veth0 && ip -n " + b +
                           " addr add 10.99.0.2/24 dev veth0 && ip -n " + a + " link set veth0 up && ip -n " +
                           b + " link set veth0 up && ip -n " + a + " link set lo up && ip -n " + b +
                           " link set lo up";
  const ProgramResult made = RunShell(make);
  struct Remover {
    std::string command;
    ~Remover() { (void)RunShell(command); }
  } remover{"ip netns del " + a + "; ip netns del " + b};
  if (made.exit_code != 0) {
    constexpr int kSkipped = 77;
    fmt::print("skipped: network namespaces cannot be made here: {}\n", made.output);
    std::fflush(nullptr);
    std::_Exit(kSkipped);
  }
  const TinyRun tiny;
  data::WriteFile(tiny.folder / "token", "a secret of both hosts\n");
  const std::string common = "run " + tiny.recipe +
                             " --set parallelism.dp=2 --set parallelism.pp=2 --set "
                             "training.micro_batch=1 --threads 2 --out ";
  const ProgramResult threads = RunProgram(common + tiny.out + "_threads");
  REQUIRE_MESSAGE(threads.exit_code == 0, threads.output);
  const auto node = [&](int rank, const std::string& more) {
    return std::make_unique<Background>(
        tiny, std::to_string(rank),
        common + tiny.out + more + " --nodes 2 --node-rank " + std::to_string(rank) +
            " --coordinator 10.99.0.1:29500 --heartbeat-timeout 1 --token-file " + tiny.folder / "token",
        "", "ip netns exec " + (rank == 0 ? a : b));
  };
  {
    const auto zero = node(0, "");
    const auto one = node(1, "");
    CHECK_MESSAGE(zero->Wait(20) == 0, zero->log());
    CHECK_MESSAGE(one->Wait(20) == 0, one->log());
    CHECK(Numbers(tiny.out) == Numbers(tiny.out + "_threads"));
    CHECK(one->log().empty());
  }
  {  // the line between them is cut
    const std::string out = tiny.out + "_cut";
    const auto zero = node(0, "_cut" + std::string(kEndless));
    const auto one = node(1, "_cut" + std::string(kEndless));
    REQUIRE_MESSAGE(WaitForMetrics(out, 1500), (zero->log() + one->log()));
    REQUIRE(RunShell("ip -n " + b + " link set veth0 down").exit_code == 0);
    CHECK_MESSAGE(zero->Wait(14) == 5, zero->log());
    CHECK_MESSAGE(one->Wait(14) == 5, one->log());
    CHECK(Contains(zero->log(), ") was lost: not heard of for 1 s\n"));
    CHECK(Contains(one->log(), "rank 0 ("));
    CHECK(!HasOrphans(tiny));
    CHECK(RunProgram("checkpoint info --verify " + out + "/checkpoints/" + NewestCheckpoint(out)).exit_code ==
          0);
  }
}

}  // namespace engine::launch

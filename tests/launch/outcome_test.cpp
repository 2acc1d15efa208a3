// How a run ended: exit codes for schedulers, and outcome.json.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/launch/background.h"

namespace engine::launch {
namespace {

using cli::Contains;
using cli::ProgramResult;
using cli::RunProgram;
using cli::TinyRun;

constexpr const char* kCodes = " --stopped-code 43 --retry-code 75";

bool HasOutcome(const std::string& out) { return std::filesystem::exists(out + "/outcome.json"); }

nlohmann::json OutcomeIn(const std::string& out) {
  REQUIRE(HasOutcome(out));
  nlohmann::json outcome = nlohmann::json::parse(data::ReadFile(out + "/outcome.json"));
  CHECK(!outcome["host"].get<std::string>().empty());
  CHECK(outcome["ended"].get<std::string>().size() == std::string("2026-11-26T05:00:00Z").size());
  outcome.erase("host");
  outcome.erase("ended");
  return outcome;
}

std::string RunOf(const TinyRun& tiny, const std::string& settings) {
  return "run " + tiny.recipe + " --set parallelism.dp=2 --threads 2 --out " + tiny.out + settings + kCodes;
}

}  // namespace

TEST_CASE(
    "outcome: a run to the end has finished, also where it had before, and what is refused changes nothing") {
  const TinyRun tiny;
  const nlohmann::json finished = {{"outcome", "finished"}, {"iteration", 8}, {"iterations", 8}};
  CHECK(RunProgram(RunOf(tiny, "")).exit_code == 0);
  CHECK(OutcomeIn(tiny.out) == finished);
  CHECK(RunProgram(RunOf(tiny, "")).exit_code == 0);
  CHECK(OutcomeIn(tiny.out) == finished);
  CHECK(RunProgram(RunOf(tiny, " --fresh")).exit_code == 1);
  CHECK(RunProgram(RunOf(tiny, " --set model.hidden=32")).exit_code == 1);
  CHECK(OutcomeIn(tiny.out) == finished);
}

TEST_CASE("outcome: a run that a signal stops has the code that was asked for") {
  for (const std::string& form : {std::string(), std::string(" --processes")}) {
    INFO(form);
    const TinyRun tiny;
    CHECK(RunProgram(RunOf(tiny, form)).exit_code == 0);
    Background run(tiny, "stopped", RunOf(tiny, kEndless + form));
    REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 4000), run.log());
    CHECK_FALSE(HasOutcome(tiny.out));  // that of before is not this run's
    kill(run.pid(), SIGTERM);
    CHECK_MESSAGE(run.Wait(60) == 43, run.log());
    const nlohmann::json outcome = OutcomeIn(tiny.out);
    CHECK(outcome["outcome"] == "stopped");
    CHECK(NewestCheckpoint(tiny.out) == fmt::format("iteration_{:07}", outcome["iteration"].get<int>()));
  }
}

TEST_CASE("outcome: a run whose rank is killed may go well another time") {
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    INFO(rank);
    const TinyRun tiny;
    Background run(tiny, "killed", RunOf(tiny, std::string(kEndless) + " --processes"));
    REQUIRE_MESSAGE(WaitForMetrics(tiny.out, 1500), run.log());
    kill(run.children().at(rank), SIGKILL);
    CHECK_MESSAGE(run.Wait(60) == 75, run.log());
    const nlohmann::json outcome = OutcomeIn(tiny.out);
    CHECK(outcome["outcome"] == "failed");
    CHECK(outcome["retryable"] == true);
    CHECK(outcome["iteration"].is_null() == (rank == 0));
    CHECK_MESSAGE(Contains(outcome["reason"], rank == 0 ? "rank 0 was killed by signal 9" : "rank 1"),
                  outcome["reason"]);
  }
}

TEST_CASE("outcome: a training that fails by itself fails again") {
  const TinyRun tiny;
  const ProgramResult run =
      RunProgram(RunOf(tiny, " --set optimizer.learning_rate=1e6 --set training.iterations=200"));
  CHECK_MESSAGE(run.exit_code == 1, run.output);
  const nlohmann::json outcome = OutcomeIn(tiny.out);
  CHECK(outcome["outcome"] == "failed");
  CHECK(outcome["retryable"] == false);
  CHECK_MESSAGE(Contains(outcome["reason"], "the weights are spoilt"), outcome["reason"]);
}

TEST_CASE("nodes: two pods of a PyTorchJob are the two hosts of a run") {
  const TinyRun tiny;
  const int port = FreePort();
  const auto pod = [&](int node, const std::string& more) {
    return fmt::format(
        "ENGINE_TOKEN=t RANK={} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} PET_NNODES=2 "
        "PET_NODE_RANK={} "
        "PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT={} {}",
        node, port, node, port, more);
  };
  const std::string arguments = RunOf(tiny, "");
  Background first(tiny, "first", arguments, pod(0, "PET_NPROC_PER_NODE=auto"));
  Background second(tiny, "second", arguments, pod(1, "PET_NPROC_PER_NODE=1"));
  CHECK_MESSAGE(first.Wait(60) == 0, first.log());
  CHECK_MESSAGE(second.Wait(60) == 0, second.log());
  CHECK(OutcomeIn(tiny.out)["outcome"] == "finished");

  const ProgramResult refused = RunProgram(arguments, pod(1, "PET_NPROC_PER_NODE=4"));
  CHECK(refused.exit_code == 2);
  CHECK_MESSAGE(
      Contains(refused.output, "PET_NPROC_PER_NODE is 4, but the recipe's 2 ranks on 2 hosts are 1 on each"),
      refused.output);
}

}  // namespace engine::launch

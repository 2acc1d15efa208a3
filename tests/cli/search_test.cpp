#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
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
  CHECK(result.output.find("plans compiled and compared") != std::string::npos);
  CHECK(RunProgram("check " + out).exit_code == 0);
}

// What the first choice takes of the device is W202's business, and the search's.
TEST_CASE("the first choice of a search passes a strict check, and leaves as much memory as was asked for") {
  const data::TempDir folder;
  const std::string out = folder / "found.toml";
  const std::string search =
      "search " + Recipe() +
      " --set cluster.memory_bytes='\"60 GB\"' --fix parallelism.dp --fix parallelism.tp" +
      " --fix parallelism.pp --fix parallelism.cp --fix parallelism.zero_stage --fix training.micro_batch" +
      " --fix parallelism.sequence_parallel --json --out " + out;
  const nlohmann::json found = nlohmann::json::parse(RunProgram(search).output);
  CHECK(found["best"][0]["of_device"].get<double>() <= 0.95);
  const ProgramResult check = RunProgram("check --strict " + out);
  CHECK_MESSAGE(check.exit_code == 0, check.output);
  const nlohmann::json full = nlohmann::json::parse(RunProgram(search + " --memory-limit 100").output);
  CHECK(full["best"][0]["of_device"].get<double>() > 0.95);
  CHECK(full["best"][0]["iteration_s"].get<double>() < found["best"][0]["iteration_s"].get<double>());
  REQUIRE(full["notes"].size() >= 1);
  CHECK(full["notes"][0].get<std::string>().starts_with("W202: "));
}

TEST_CASE("what the cluster does not say is unknown, not zero") {
  const std::string search = "search " + SourcePath("recipes/quickstart.toml") + kFixed;
  const std::string text = RunProgram(search).output;
  CHECK(text.find("cluster.matmul_flops is not given") != std::string::npos);
  CHECK(text.find("–") != std::string::npos);
  const nlohmann::json found = nlohmann::json::parse(RunProgram(search + " --json 2>/dev/null").output);
  REQUIRE(!found["best"].empty());
  for (const char* key : {"iteration_s", "tokens_per_s", "mfu", "of_device"})
    CHECK(found["best"][0][key].is_null());
}

TEST_CASE("an interleaved pipeline is called so") {
  const data::TempDir folder;
  const std::string out = folder / "found.toml";
  const std::string fixed =
      " --fix parallelism.pp --fix parallelism.dp --fix parallelism.tp --fix parallelism.virtual_stages "
      "--fix parallelism.zero_stage --fix training.micro_batch --fix recompute.granularity";
  const std::string search = "search " + Recipe() +
                             " --set parallelism.pp=2 --set parallelism.dp=2 --set training.micro_batch=1 "
                             "--set parallelism.virtual_stages=4" +
                             fixed + " --out " + out;
  const std::string text = RunProgram(search).output;
  CHECK(text.find(" interleaved ") != std::string::npos);
  CHECK(text.find("interleaved, 4 chunks a stage") != std::string::npos);
  CHECK(text.find("1f1b") == std::string::npos);
  const nlohmann::json found = nlohmann::json::parse(RunProgram(search + " --json 2>/dev/null").output);
  REQUIRE(!found["best"].empty());
  CHECK(found["best"][0]["schedule"] == "interleaved");
  CHECK(data::ReadFile(out).find("schedule = \"interleaved\"") != std::string::npos);
}

// Many a sender sends two signals for one request (launch/stop_requests.h).
TEST_CASE("a search that is interrupted, by one signal or two, says how far it was and what it has found") {
  for (const int signals : {1, 2}) {
    const data::TempDir folder;
    const std::string out = folder / "out";
    const std::string err = folder / "err";
    const auto found_something = [&] {
      return std::filesystem::exists(err) && data::ReadFile(err).find("best so far ") != std::string::npos;
    };
    const int code = Interrupt(
        "search " + SourcePath("recipes/scale/gpt-175b-256gpu.toml") + " --progress > " + out + " 2> " + err,
        found_something, SIGINT, signals);
    CHECK(code == 130);
    const std::string text = data::ReadFile(out);
    CHECK(text.find(" lawful layouts of 256 ranks; interrupted after ") != std::string::npos);
    CHECK(text.find("\nbest: dp ") != std::string::npos);
    CHECK(data::ReadFile(err).find("interrupted; this is what was found") != std::string::npos);
  }
}

TEST_CASE("search shows one layout at least") {
  const ProgramResult none = RunProgram("search " + Recipe() + " --show 0");
  CHECK(none.exit_code == 2);
  CHECK(none.output.find("--show") != std::string::npos);
}

TEST_CASE("search names the keys that it varies") {
  const ProgramResult result = RunProgram("search " + Recipe() + " --fix parallelism.exchange");
  CHECK(result.exit_code == 2);
  CHECK(result.output.find("--fix parallelism.exchange: search varies parallelism.dp, ") !=
        std::string::npos);
}

TEST_CASE("a world that no layout shares the recipe's work over is refused, with the nearest that some do") {
  const ProgramResult none = RunProgram("search " + SourcePath("recipes/quickstart.toml") + " --world 9");
  CHECK(none.exit_code == 1);
  CHECK_MESSAGE(
      none.output.find("no layout of 9 ranks is lawful for this recipe: they cannot be split into "
                       "data-parallel ranks that share its 16 samples a batch evenly, ") != std::string::npos,
      none.output);
  CHECK_MESSAGE(
      none.output.find("and 8 stages at most; there are layouts of 8 and of 10 ranks\n") != std::string::npos,
      none.output);
  const ProgramResult zero = RunProgram("search " + Recipe() + " --world 0");
  CHECK(zero.exit_code == 2);
  CHECK(zero.output.find("--world: Value 0 not in range") != std::string::npos);
  CHECK(zero.output.size() < 200);
}

TEST_CASE("a world that does not fill nodes is refused") {
  const ProgramResult result = RunProgram("search " + Recipe() + " --world 12");
  CHECK(result.exit_code == 2);
  CHECK(result.output.find("--world 12: nodes of h100-8x-ib400 have 8 devices each") != std::string::npos);
}

}  // namespace
}  // namespace engine::cli

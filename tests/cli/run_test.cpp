// A whole life of a run through the program: train, stop, resume, look, refuse.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/tiny_run.h"

namespace engine::cli {
namespace {

// A long run, which gets the signal once there are metrics.
int InterruptRun(const TinyRun& tiny, const std::string& out, int signal_number) {
  const auto under_way = [metrics = out + "/metrics.jsonl"] {
    std::error_code error;
    return std::filesystem::exists(metrics, error) && std::filesystem::file_size(metrics, error) >= 1000;
  };
  return Interrupt("run " + tiny.recipe + " --out " + out +
                       " --set training.iterations=200000 --set checkpoint.interval=0",
                   under_way, signal_number);
}

}  // namespace

TEST_CASE("run: trains, lists its checkpoints, resumes, and ends where it ended") {
  const TinyRun tiny;
  const ProgramResult first = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  REQUIRE_MESSAGE(first.exit_code == 0, first.output);
  CHECK(Contains(first.output, "iteration        8/       8 | consumed samples:           32 |"));
  CHECK(Contains(first.output, "| number of nan iterations:   0 |"));
  CHECK(Contains(first.output, "saved checkpoint of iteration 8 to " + tiny.out + "/checkpoints\n"));
  const ProgramResult again = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  CHECK(again.exit_code == 0);
  CHECK(Contains(again.output,
                 "resumed from " + tiny.out + "/checkpoints/iteration_0000008 after iteration 8"));
  CHECK_FALSE(Contains(again.output, "warning: "));
  const ProgramResult less =
      RunProgram("run " + tiny.recipe + " --set training.iterations=5 --quiet --out " + tiny.out);
  CHECK(less.exit_code == 0);
  CHECK(Contains(less.output, "warning: " + tiny.out +
                                  " has reached iteration 8, but the recipe has 5 alone: it stays as it is\n"
                                  "    hint: with training.iterations of more than 8 it trains on; another "
                                  "--out begins anew\n"));
  const ProgramResult fresh = RunProgram("run " + tiny.recipe + " --fresh --out " + tiny.out);
  CHECK(fresh.exit_code == 1);
  CHECK(Contains(fresh.output, "engine run: --fresh: " + tiny.out + " already holds a run"));

  const ProgramResult list = RunProgram("checkpoint info " + tiny.out + "/checkpoints");
  CHECK(list.exit_code == 0);
  CHECK(Contains(list.output, "whole\n"));
  const ProgramResult info = RunProgram("checkpoint info --verify --tensors --format json " + tiny.out +
                                        "/checkpoints/iteration_0000008");
  REQUIRE(info.exit_code == 0);
  const nlohmann::json json = nlohmann::json::parse(info.output, nullptr, false);
  REQUIRE(json.is_object());
  CHECK(json["iteration"] == 8);
  CHECK(json["consumed_samples"] == 32);
  CHECK(json["tensor_count"] == json["tensors"].size());

  const ProgramResult data = RunProgram("data info " + tiny.folder / "text_text_document");
  CHECK(data.exit_code == 0);
  CHECK(Contains(data.output, "60"));
}

TEST_CASE("run: Ctrl-C and SIGTERM save and exit 0; the run goes on from there") {
  const TinyRun tiny;
  for (const int signal_number : {SIGINT, SIGTERM}) {
    const std::string out = tiny.out + std::to_string(signal_number);
    CHECK(InterruptRun(tiny, out, signal_number) == 0);
    const ProgramResult resumed =
        RunProgram("run " + tiny.recipe + " --out " + out + " --set training.iterations=1");
    CHECK(resumed.exit_code == 0);
    CHECK(Contains(resumed.output, "resumed from " + out + "/checkpoints/iteration_"));
    CHECK(Contains(resumed.output, "changed since the checkpoint: training.iterations: 200000 → 1"));
  }
}

TEST_CASE("run: what is refused, and how") {
  const TinyRun tiny;
  const auto refused = [&](const std::string& arguments, int exit_code, const std::string& part) {
    const ProgramResult result = RunProgram("run " + arguments + " --out " + tiny.out);
    INFO(arguments);
    CHECK(result.exit_code == exit_code);
    CHECK(Contains(result.output, part));
    CHECK(!std::filesystem::exists(tiny.out));
  };
  refused("", 2, "recipe");
  refused(tiny.recipe + " --threads 0", 2, "--threads");
  refused(tiny.recipe + ".absent", 1, tiny.recipe + ".absent");
  refused(tiny.recipe + " --set training.iterations=0", 1, "--set:1:21");
  refused(tiny.recipe + " --set precision.compute=bf16", 1, "--set:1:19: error: the cpu executor");
  refused(tiny.recipe + " --set data.paths='[\"/nowhere/x\"]'", 1, "/nowhere/x");
  refused(tiny.recipe + " --set data.split='\"1,0,0\"' --set evaluation.interval=1", 1, "validation");
}

TEST_CASE("run: where the data set is missing, or is elsewhere, what to do is told") {
  const TinyRun tiny;
  const std::string prefix = "data.paths='[\"text_text_document\"]'";
  const ProgramResult elsewhere =
      RunProgram("run " + tiny.recipe + " --set " + prefix + " --out " + tiny.out);
  CHECK(elsewhere.exit_code == 1);
  CHECK(Contains(elsewhere.output, "cannot open text_text_document.idx: No such file or directory"));
  CHECK(Contains(elsewhere.output, "\n    hint: data paths are relative to the working directory, "));
  CHECK(Contains(elsewhere.output, "where text_text_document.idx is"));
  const ProgramResult absent =
      RunProgram("run " ENGINE_SOURCE_DIR
                 "/recipes/gpt2-large-tp2.toml --device cpu --set precision.compute=fp32"
                 " --set data.paths='[\"data/absent/gpt2_text_document\"]' --out " +
                 tiny.out);
  CHECK(absent.exit_code == 1);
  CHECK(Contains(absent.output,
                 "\n    hint: `engine data build --input TEXT.jsonl --append-eod --output-prefix "
                 "data/absent/gpt2 --tokenizer gpt2 --vocab-file "));
  CHECK(!std::filesystem::exists(tiny.out));
}

TEST_CASE("run: a recipe for a GPU, without one: nothing is started") {
  const data::TempDir folder;
  const std::string recipe =
      std::string(ENGINE_SOURCE_DIR) + "/recipes/gpt2-124m-1gpu.toml --out " + folder / "run";
  const std::string no_gpu = "CUDA_VISIBLE_DEVICES=";  // where this machine has one
  const ProgramResult automatic = RunProgram("run " + recipe, no_gpu);
  CHECK(automatic.exit_code == 3);
  CHECK(
      Contains(automatic.output, "configs/clusters/h200-x1.toml:5:10: [cluster] device \"h200\" is a GPU: "));
  CHECK(Contains(automatic.output,
                 "\n    hint: `engine doctor` says what is missing; --device cpu --set "
                 "precision.compute=fp32 runs it on the CPU\n"));
  const ProgramResult asked = RunProgram("run " + recipe + " --device cuda", no_gpu);
  CHECK(asked.exit_code == 3);
  CHECK(Contains(asked.output, "engine run: --device cuda: "));
  const ProgramResult narrow = RunProgram("run " + recipe + " --device cpu");
  CHECK(narrow.exit_code == 1);
  CHECK(Contains(narrow.output,
                 "recipes/gpt2-124m-1gpu.toml:12:11: error: the cpu executor runs precision.compute fp32, "
                 "not bf16\n"));
  CHECK(Contains(narrow.output, "\n    hint: --set precision.compute=fp32 runs it here"));
  CHECK(folder.entries() == 0);
}

TEST_CASE("run: too little memory is itemised, and nothing is started") {
  const TinyRun tiny;
  const ProgramResult result =
      RunProgram("run " + tiny.recipe + " --set model.mlp.hidden=1073741824 --out " + tiny.out);
  CHECK(result.exit_code == 1);
  CHECK(Contains(result.output, "engine run: one rank needs an arena of "));
  CHECK(Contains(result.output, " of memory for the cpu executor; on stage 0, the arena is parameters "));
  CHECK(!std::filesystem::exists(tiny.out));
}

TEST_CASE("run: --help documents the exit codes") {
  const ProgramResult help = RunProgram("run --help");
  CHECK(Contains(help.output, "\n  3  no device will do"));
  CHECK(Contains(help.output, "\n  4  the device or a library of it failed while it ran"));
  CHECK(Contains(help.output, "\n  16 a machine computes or stores something wrong"));
}

TEST_CASE("run: two runs in one folder do not mix") {
  const TinyRun tiny;
  REQUIRE(std::filesystem::create_directories(tiny.out));
  const int folder = open(tiny.out.c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(flock(folder, LOCK_EX | LOCK_NB) == 0);
  const ProgramResult second = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  close(folder);
  CHECK(second.exit_code == 1);
  CHECK(Contains(second.output, "engine run: " + tiny.out + " is in use by another run"));
  CHECK(std::filesystem::is_empty(tiny.out));
}

TEST_CASE("run: two recipes of one file name do not share the default folder in silence") {
  const TinyRun tiny;
  const std::string root = tiny.folder.path();
  for (const char* name : {"one", "two"}) {
    REQUIRE(std::filesystem::create_directories(root + "/" + name));
    const std::string length = std::string(name) == "one" ? "iterations = 2\n" : "iterations = 3\n";
    std::string text = data::ReadFile(tiny.recipe);
    text.replace(text.find("iterations = 8\n"), 15, length);
    data::WriteFile(root + "/" + name + "/x.toml", text);
  }
  const auto run = [&](const std::string& arguments) {
    return RunShell("cd " + root + " && " + ENGINE_BINARY + " run " + arguments);
  };
  REQUIRE(run("one/x.toml").exit_code == 0);
  const std::string metrics = data::ReadFile(root + "/runs/x/metrics.jsonl");
  const ProgramResult other = run("two/x.toml");
  CHECK(other.exit_code == 1);
  CHECK(Contains(other.output, "engine run: runs/x holds a run of another recipe file of that name: "));
  CHECK(Contains(other.output, "/one/x.toml, and not "));
  CHECK(data::ReadFile(root + "/runs/x/metrics.jsonl") == metrics);
  // The same file goes on, however it is named and whatever is set.
  CHECK(Contains(run(root + "/one/x.toml --set training.iterations=3").output, "after iteration 2\n"));
  CHECK(Contains(RunShell("cd " + root + "/runs && " + ENGINE_BINARY + " run ../one/x.toml --out x").output,
                 "after iteration 3; the recipe has 2"));
  // A folder that is given is the user's decision, and the run is then the other file's.
  CHECK(Contains(run("two/x.toml --out runs/x").output, "after iteration 3"));
  CHECK(Contains(run("two/x.toml --set training.iterations=4").output, "/one/x.toml, and not "));
  CHECK(run("two/x.toml --set training.iterations=4 --out runs/x").exit_code == 0);
  CHECK(run("two/x.toml --set training.iterations=5").exit_code == 0);
}

TEST_CASE("run: the log is on standard output, notes on standard error") {
  const TinyRun tiny;
  const std::string run = std::string(ENGINE_BINARY) + " run " + tiny.recipe + " --out " + tiny.out;
  REQUIRE(RunShell(run + " --set training.iterations=4").exit_code == 0);
  REQUIRE(std::filesystem::create_directory(tiny.out + "/checkpoints/iteration_0000009"));
  data::WriteFile(tiny.out + "/checkpoints/iteration_0000009/manifest.json", "{");
  const ProgramResult notes = RunShell("( " + run + " > " + tiny.folder / "log" + " )");
  CHECK(notes.exit_code == 0);
  CHECK(Contains(notes.output, "note: "));
  CHECK(Contains(notes.output, "iteration_0000009"));
  CHECK(Contains(notes.output, "note: changed since the checkpoint: training.iterations: 4 → 8\n"));
  CHECK(notes.output.find("lm loss") == std::string::npos);
  const std::string log = data::ReadFile(tiny.folder / "log");
  CHECK(log.find("note: ") == std::string::npos);
  CHECK(Contains(log, "resumed from "));
  CHECK(Contains(log, "lm loss: "));
}

TEST_CASE("run: a resume that would run out of samples is refused before anything starts") {
  const TinyRun tiny;
  REQUIRE(RunProgram("run " + tiny.recipe + " --out " + tiny.out).exit_code == 0);
  const ProgramResult smaller =
      RunProgram("run " + tiny.recipe + " --out " + tiny.out +
                 " --set training.global_batch=2 --set training.micro_batch=1 --set training.iterations=10");
  CHECK(smaller.exit_code == 1);
  CHECK(Contains(smaller.output, "has consumed 32 samples in 8 iterations"));
  CHECK(Contains(smaller.output, "ask the data for 20 only"));
  const ProgramResult odd = RunProgram("generate " + tiny.out + " --temperature nan");
  CHECK(odd.exit_code == 2);
  CHECK(Contains(odd.output, "--temperature: nan is no number"));
}

TEST_CASE("run: one that begins anew where a run was says so, and keeps what that one had measured") {
  const TinyRun tiny;
  const std::string run = "run " + tiny.recipe + " --out " + tiny.out;
  REQUIRE(RunProgram(run).exit_code == 0);
  const std::string before = data::ReadFile(tiny.out + "/metrics.jsonl");
  std::filesystem::remove_all(tiny.out + "/checkpoints");
  const ProgramResult again = RunProgram(run + " --set training.iterations=3");
  REQUIRE_MESSAGE(again.exit_code == 0, again.output);
  CHECK(Contains(again.output,
                 "metrics.jsonl has iterations up to 8, but no checkpoint is there: the run begins anew"));
  CHECK((data::ReadFile(tiny.out + "/metrics.jsonl.old") == before));
  CHECK(Contains(data::ReadFile(tiny.out + "/metrics.jsonl"), "\"iteration\":3"));
  CHECK(RunProgram("run " + tiny.recipe + " --out ''").exit_code == 2);
}

TEST_CASE("run: a limit on the size of files is an error, not a silent end") {
  const TinyRun tiny;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 8 << 10, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const ProgramResult result = RunProgram("run " + tiny.recipe + " --out " + tiny.out);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(result.exit_code == 1);
  CHECK(Contains(result.output, "engine run: "));
}

TEST_CASE("a full disk is an error of every command, and never a crash") {
  for (const char* command : {"schema", "explain --page", "help run", "--version", "--help"}) {
    CAPTURE(command);
    const ProgramResult result = RunProgram(std::string(command) + " > /dev/full");
    CHECK(result.exit_code == 1);
  }
  const std::string recipe = ENGINE_SOURCE_DIR "/recipes/quickstart.toml";
  CHECK(RunProgram("search " + recipe + " --fix nope 2> /dev/full").exit_code == 2);
}

TEST_CASE("run --quiet: no log, but errors; the metrics are written") {
  const TinyRun tiny;
  const std::string whole = " --set model.vocab=264";  // no padding, which would be noted
  const ProgramResult quiet = RunProgram("run --quiet " + tiny.recipe + whole + " --out " + tiny.out);
  CHECK(quiet.exit_code == 0);
  CHECK(quiet.output.empty());
  CHECK(RunShell("grep -c '\"loss\"' " + tiny.out + "/metrics.jsonl").output == "8\n");
  const ProgramResult processes = RunProgram("run --quiet --processes " + tiny.recipe + whole +
                                             " --set parallelism.dp=2 --out " + tiny.folder / "two");
  CHECK(processes.exit_code == 0);
  CHECK(processes.output.empty());
  const ProgramResult wrong = RunProgram("run --quiet " + tiny.recipe + " --set model.hiden=3");
  CHECK(wrong.exit_code == 1);
  CHECK(Contains(wrong.output, "unknown key 'hiden'"));
}

}  // namespace engine::cli

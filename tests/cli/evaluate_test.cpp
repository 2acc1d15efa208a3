#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/tiny_run.h"

namespace engine::cli {
namespace {

using nlohmann::json;

// A file in NumPy's form of float32 [rows, columns].
std::vector<float> ReadLogits(const std::string& file, size_t columns, size_t* rows) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t header =
      10 + static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  std::vector<float> values((bytes.size() - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + header, values.size() * sizeof(float));
  *rows = values.size() / columns;
  return values;
}

// Behind what was said on standard error, which RunProgram has, too.
json JsonOf(const std::string& output) {
  const size_t begin = output.find("[\n");
  REQUIRE_MESSAGE(begin != std::string::npos, output);
  return json::parse(output.substr(begin));
}

}  // namespace

TEST_CASE("evaluate: perplexity, by float64 from the logits that generate writes") {
  const TinyRun tiny;
  REQUIRE(RunProgram("run " + tiny.recipe + " --out " + tiny.out).exit_code == 0);
  const std::string text = "81 bottles of b";  // 15 bytes, behind an end of a document: one window of 16
  data::WriteFile(tiny.folder / "one.txt", text);
  const ProgramResult result = RunProgram("evaluate " + tiny.out + " --device cpu --json --task perplexity=" +
                                          tiny.folder / "one.txt" + " 2>/dev/null");
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  const ProgramResult same =
      RunProgram("evaluate " + tiny.out + " --device cpu --task perplexity=" + tiny.folder / "one.txt" +
                 " --samples-out " + tiny.folder / "one.txt");
  CHECK(same.exit_code == 1);
  CHECK(same.output.find("one.txt: it is the file of task perplexity") != std::string::npos);
  const json measures = JsonOf(result.output)[0]["measures"];

  std::string ids = "256";
  for (const char c : text) ids += fmt::format(" {}", static_cast<int>(c));
  const ProgramResult logits =
      RunProgram("generate " + tiny.out + " --tokens-in '" + ids + "' --logits " + tiny.folder / "l.npy");
  REQUIRE_MESSAGE(logits.exit_code == 0, logits.output);
  size_t rows = 0;
  const std::vector<float> z = ReadLogits(tiny.folder / "l.npy", 257, &rows);
  REQUIRE(rows == 16);
  double cost = 0;
  for (size_t place = 0; place < 15; ++place) {
    double sum = 0;
    for (size_t v = 0; v < 257; ++v) sum += std::exp(static_cast<double>(z[place * 257 + v]));
    cost += std::log(sum) - static_cast<double>(z[place * 257 + static_cast<unsigned char>(text[place])]);
  }
  CHECK(std::abs(measures["perplexity"]["value"].get<double>() / std::exp(cost / 15) - 1) < 1e-5);
  CHECK(std::abs(measures["byte_perplexity"]["value"].get<double>() / std::exp(cost / 15) - 1) < 1e-5);
  CHECK(std::abs(measures["word_perplexity"]["value"].get<double>() / std::exp(cost / 4) - 1) < 1e-5);
  CHECK(std::abs(measures["bits_per_byte"]["value"].get<double>() / (cost / 15 / std::log(2.0)) - 1) < 1e-5);
  CHECK_FALSE(measures["perplexity"].contains("standard_error"));  // of one row
}

TEST_CASE("evaluate: a recipe's layout and run, limits, samples, and what is wrong") {
  const TinyRun tiny;
  std::string lines;
  for (int i = 0; i < 20; ++i)
    lines +=
        json{{"context", fmt::format("{} bot", i)}, {"choices", {"tles", "xqzv"}}, {"answer", 0}}.dump() +
        "\n";
  data::WriteFile(tiny.folder / "c.jsonl", lines);
  data::WriteFile(tiny.folder / "c.toml",
                  "form = \"multiple_choice\"\nname = \"bottles\"\nfile = \"c.jsonl\"\ndelimiter = \"\"\n");
  const std::string task = " --device cpu --task " + tiny.folder / "c.toml";
  const ProgramResult untrained = RunProgram("evaluate " + tiny.recipe + task);
  CHECK(untrained.exit_code == 0);
  CHECK(untrained.output.find(
            "there is no checkpoint: the weights are those with which training would begin") !=
        std::string::npos);
  CHECK(untrained.output.find("bottles: 20 examples, 160 tokens predicted") != std::string::npos);
  REQUIRE(
      RunProgram("run " + tiny.recipe + " --out " + tiny.out + " --set training.iterations=60").exit_code ==
      0);
  const auto accuracy = [&](const std::string& arguments) {
    const ProgramResult result = RunProgram("evaluate " + arguments + task + " --json 2>/dev/null");
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return JsonOf(result.output)[0]["measures"]["acc"]["value"].get<double>();
  };
  CHECK(accuracy(tiny.out) == 1);
  CHECK(accuracy(tiny.recipe + " --run " + tiny.out) == 1);
  CHECK(accuracy(tiny.recipe + " --run " + tiny.out + " --set parallelism.tp=2 --set parallelism.pp=2") == 1);
  CHECK(accuracy(tiny.out + "/checkpoints/iteration_0000060 --batch 3") == 1);
  const ProgramResult limited =
      RunProgram("evaluate " + tiny.out + task + " --limit 7 --samples-out " + tiny.folder / "s.jsonl");
  CHECK(limited.output.find("bottles: 7 examples") != std::string::npos);
  std::ifstream samples(tiny.folder / "s.jsonl");
  std::string first;
  REQUIRE(std::getline(samples, first));
  const json sample = json::parse(first);
  CHECK(sample["task"] == "bottles");
  CHECK(sample["line"] == 1);
  CHECK(sample["chosen"] == 0);
  CHECK(sample["rows"].size() == 2);
  CHECK(sample["rows"][0]["tokens"] == 4);

  const auto error = [&](const std::string& arguments) {
    const ProgramResult result = RunProgram("evaluate " + arguments);
    CHECK(result.exit_code == 1);
    return result.output;
  };
  CHECK(error(tiny.folder.path() + task).find("holds neither a whole checkpoint nor a Hugging Face model") !=
        std::string::npos);
  CHECK(error(tiny.out + " --task lambada=" + tiny.folder / "c.jsonl" + " --device cpu")
            .find("c.jsonl:1: error: the key \"text\" is missing") != std::string::npos);
  CHECK(error(tiny.folder / "nope" + task) == "engine evaluate: there is no " + tiny.folder / "nope" + "\n");
  CHECK(error(tiny.out + " --task lambada=/nowhere/a.jsonl --device cpu") ==
        "engine evaluate: --task: cannot open /nowhere/a.jsonl: No such file or directory\n");
  CHECK(error(tiny.out + " --task /nowhere/a.toml --device cpu") ==
        "engine evaluate: --task: cannot read '/nowhere/a.toml': No such file or directory\n");
  CHECK(error(tiny.out + task + " --set a.b=1").find("--set and --run go with a recipe") !=
        std::string::npos);
  CHECK(error(tiny.recipe + " --run " + tiny.folder / "nowhere" + task)
            .find("nowhere holds no whole checkpoint") != std::string::npos);
  CHECK(error(tiny.out + task + " --samples-out /nowhere/s.jsonl") ==
        "engine evaluate: --samples-out /nowhere/s.jsonl: its folder is not there\n");
  CHECK(RunProgram("evaluate " + tiny.out).exit_code == 2);
  CHECK(RunProgram("evaluate " + tiny.out + task + " --limit 0").exit_code == 2);
}

TEST_CASE("evaluate: tasks of a run of processes are those of threads, and diff compares two runs") {
  const TinyRun tiny;
  data::WriteFile(
      tiny.folder / "w.jsonl",
      "{\"text\": \"9 bottles of beer\"}\n{\"text\": \"4 bottles of\"}\n{\"text\": \"on the wall\"}\n");
  const std::string sets =
      " --set evaluation.interval=8 --set evaluation.iterations=1 --set 'evaluation.tasks=[\"lambada=" +
      tiny.folder / "w.jsonl" +
      "\"]' --set parallelism.tp=2 --set parallelism.pp=2 --set 'data.split=\"5,5,0\"'";
  const ProgramResult threads = RunProgram("run " + tiny.recipe + " --out " + tiny.out + sets);
  REQUIRE_MESSAGE(threads.exit_code == 0, threads.output);
  const ProgramResult processes =
      RunProgram("run " + tiny.recipe + " --processes --out " + tiny.folder / "p" + sets);
  REQUIRE_MESSAGE(processes.exit_code == 0, processes.output);
  const auto line = [](const std::string& output) {
    const size_t begin = output.find(" lambada (3 examples) |");
    REQUIRE(begin != std::string::npos);
    return output.substr(begin, output.find('\n', begin) - begin);
  };
  CHECK(line(threads.output) == line(processes.output));
  const ProgramResult diff = RunProgram("diff " + tiny.out + " " + tiny.folder / "p");
  CHECK(diff.exit_code == 0);
  CHECK(diff.output.find("lambada/perplexity") != std::string::npos);
  CHECK(diff.output.find("difference with a confidence of 95 %") != std::string::npos);
  const ProgramResult watched = RunProgram("watch --once " + tiny.out);
  CHECK(watched.output.find("lambada/acc") != std::string::npos);
  const ProgramResult report = RunProgram("report " + tiny.out + " -o " + tiny.folder / "r.md");
  CHECK(report.exit_code == 0);
  std::ifstream page(tiny.folder / "r.md");
  const std::string markdown((std::istreambuf_iterator<char>(page)), std::istreambuf_iterator<char>());
  CHECK(markdown.find("lambada/perplexity") != std::string::npos);
}

}  // namespace engine::cli

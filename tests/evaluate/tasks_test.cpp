// Tasks against tests/oracles/tasks.py: the tokens that a model is fed, which of them it predicts, and what follows from its
// scores. And what is wrong with tasks, by line.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/evaluate/examples.h"
#include "engine/evaluate/results.h"
#include "engine/evaluate/white_space.h"
#include "engine/evaluate/wikitext.h"
#include "tests/data/temp_dir.h"
#include "tests/evaluate/toy_tokenizer.h"

namespace engine::evaluate {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const json& OracleOfTasks() {
  static const json oracle = [] {
    std::ifstream file(ENGINE_SOURCE_DIR "/tests/evaluate/tasks.json");
    return json::parse(file);
  }();
  return oracle;
}

ToyTokenizer OracleTokenizer() {
  std::map<std::string, std::int32_t> tokens;
  for (const json& token : OracleOfTasks()["tokens"]) {
    std::string text;
    for (const json& byte : token[0]) text += static_cast<char>(byte.get<int>());
    tokens[text] = token[1];
  }
  return ToyTokenizer(std::move(tokens), OracleOfTasks()["end"]);
}

void WriteText(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string TomlOf(const json& settings) {
  std::string text;
  for (const auto& [key, value] : settings.items()) text += fmt::format("{} = {}\n", key, value.dump());
  return text + "file = \"examples.jsonl\"\n";
}

bool Near(double expected, double actual) {
  return std::abs(expected - actual) <= 1e-9 * (1 + std::abs(expected));
}

void CheckMeasure(const json& expected, const Measure& actual) {
  CHECK(Near(expected["value"], actual.value));
  if (expected.contains("standard_error")) {
    REQUIRE(actual.standard_error);
    CHECK(Near(expected["standard_error"], *actual.standard_error));
  }
  if (expected.contains("interval")) {
    REQUIRE(actual.interval);
    CHECK(Near(expected["interval"][0], actual.interval->first));
    CHECK(Near(expected["interval"][1], actual.interval->second));
  }
}

// The error of a task of this form whose file has this text.
std::string ErrorOfExamples(const std::string& form, const std::string& text, std::int64_t sequence = 8) {
  const data::TempDir dir;
  const std::string file = dir.path() + "/bad.jsonl";
  WriteText(file, text);
  const absl::StatusOr<TaskSettings> settings = ReadTask(form + "=" + file);
  REQUIRE_MESSAGE(settings.ok(), Message(settings.status()));
  const absl::StatusOr<Task> task = MakeTask(*settings, OracleTokenizer(), 301, sequence, 0);
  REQUIRE_FALSE(task.ok());
  const std::string message = Message(task.status());
  REQUIRE(message.starts_with(dir.path() + "/"));
  return message.substr(dir.path().size() + 1);
}

std::string ErrorOfTaskFile(const std::string& text) {
  const data::TempDir dir;
  WriteText(dir.path() + "/task.toml", text);
  const absl::StatusOr<TaskSettings> settings = ReadTask(dir.path() + "/task.toml");
  REQUIRE_FALSE(settings.ok());
  return Message(settings.status());
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("tasks: WikiText without the marks of its tokenisation, words and characters, as Python has them") {
  for (const json& pair : OracleOfTasks()["detokenized"])
    CHECK(DetokenizeWikitext(pair[0].get<std::string>()) == pair[1].get<std::string>());
  for (const json& counts : OracleOfTasks()["counts"]) {
    CAPTURE(counts.dump());
    CHECK(CountWords(counts[0].get<std::string>()) == counts[1]);
    CHECK(CountCharacters(counts[0].get<std::string>()) == counts[2]);
  }
}

TEST_CASE("tasks: rows, and measures of their scores") {
  const ToyTokenizer tokenizer = OracleTokenizer();
  for (const json& expected : OracleOfTasks()["cases"]) {
    CAPTURE(expected["settings"].dump());
    const data::TempDir dir;
    std::string lines;
    for (const json& line : expected["lines"]) lines += line.dump() + "\n";
    WriteText(dir.path() + "/examples.jsonl", lines);
    WriteText(dir.path() + "/some-task.toml", TomlOf(expected["settings"]));
    const absl::StatusOr<TaskSettings> settings = ReadTask(dir.path() + "/some-task.toml");
    REQUIRE_MESSAGE(settings.ok(), Message(settings.status()));
    CHECK(settings->name == "some-task");
    const absl::StatusOr<Task> task = MakeTask(*settings, tokenizer, 301, expected["window"], 0);
    REQUIRE_MESSAGE(task.ok(), Message(task.status()));
    REQUIRE(task->rows.size() == expected["rows"].size());
    CHECK(task->examples.size() == expected["lines"].size());
    CHECK(task->truncated == expected["truncated"]);
    std::vector<RowScore> scores;
    for (size_t i = 0; i < task->rows.size(); ++i) {
      const Row& row = task->rows[i];
      CHECK(row.tokens == expected["rows"][i][0].get<std::vector<std::int32_t>>());
      CHECK(row.first == expected["rows"][i][1]);
      scores.push_back({.log_probability = expected["scores"][i][0],
                        .predicted = row.predicted(),
                        .missed = expected["scores"][i][1]});
    }
    const TaskResult result = Summarize(*task, scores);
    size_t known = 0;
    for (const Measure& measure : result.measures) {
      CAPTURE(measure.name);
      if (!expected["measures"].contains(measure.name)) continue;
      ++known;
      CheckMeasure(expected["measures"][measure.name], measure);
    }
    CHECK(known == expected["measures"].size());
  }
}

TEST_CASE("tasks: a limit, and a file that is one text") {
  const data::TempDir dir;
  const ToyTokenizer tokenizer = OracleTokenizer();
  WriteText(dir.path() + "/three.jsonl", "{\"text\": \"x b\"}\n\n{\"text\": \"y d\"}\n{\"text\": \"e f\"}\n");
  const absl::StatusOr<TaskSettings> three = ReadTask("lambada=" + dir.path() + "/three.jsonl");
  REQUIRE(three.ok());
  const absl::StatusOr<Task> two = MakeTask(*three, tokenizer, 301, 8, 2);
  REQUIRE(two.ok());
  CHECK(two->examples.size() == 2);
  CHECK(two->examples[1].line == 3);
  // Compressed, it is the same.
  REQUIRE(std::system(("gzip -k " + dir.path() + "/three.jsonl").c_str()) == 0);
  for (const std::string form : {"lambada=", "perplexity="}) {
    const absl::StatusOr<Task> plain =
        MakeTask(*ReadTask(form + dir.path() + "/three.jsonl"), tokenizer, 301, 8, 0);
    const absl::StatusOr<Task> packed =
        MakeTask(*ReadTask(form + dir.path() + "/three.jsonl.gz"), tokenizer, 301, 8, 0);
    REQUIRE(plain.ok());
    REQUIRE_MESSAGE(packed.ok(), Message(packed.status()));
    CHECK(packed->examples.size() == 3);
    CHECK(packed->contents == plain->contents);
  }
  WriteText(dir.path() + "/one.txt", "a b c d\ne f\n");
  const absl::StatusOr<TaskSettings> one = ReadTask("perplexity=" + dir.path() + "/one.txt");
  REQUIRE(one.ok());
  const absl::StatusOr<Task> text = MakeTask(*one, tokenizer, 301, 3, 0);
  REQUIRE(text.ok());
  CHECK(text->examples.size() == 1);
  CHECK(text->examples[0].bytes == 12);
  // By row, as there is one text: an error is known.
  std::vector<RowScore> scores;
  for (const Row& row : text->rows)
    scores.push_back(
        {.log_probability = -1.0 * static_cast<double>(scores.size() + 1), .predicted = row.predicted()});
  CHECK(Summarize(*text, scores).measures[0].standard_error.has_value());
  CHECK_FALSE(Summarize(*text, scores).measures[0].standard_error == 0);
}

TEST_CASE("tasks: deviations give the errors of measures, and of their differences example by example") {
  const data::TempDir dir;
  const ToyTokenizer tokenizer = OracleTokenizer();
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += fmt::format("{{\"text\": \"x b\"}}\n");
  WriteText(dir.path() + "/five.jsonl", lines);
  const absl::StatusOr<TaskSettings> settings = ReadTask("lambada=" + dir.path() + "/five.jsonl");
  REQUIRE(settings.ok());
  const absl::StatusOr<Task> task = MakeTask(*settings, tokenizer, 301, 8, 0);
  REQUIRE(task.ok());
  const auto asked = [&](const std::vector<double>& costs, const std::vector<int>& missed) {
    std::vector<RowScore> scores;
    for (std::size_t i = 0; i < costs.size(); ++i)
      scores.push_back({.log_probability = -costs[i], .predicted = 1, .missed = missed[i]});
    return Summarize(*task, scores);
  };
  const TaskResult a = asked({1, 2, 3, 4, 5}, {0, 1, 1, 0, 1});
  const TaskResult b = asked({1, 2, 3.5, 3, 5.5}, {0, 0, 1, 0, 1});
  CHECK(a.units == b.units);
  CHECK(a.units == task->contents);
  // Accuracies differ by 0, 1, 0, 0, 0: a mean of 1/5, squares of 4 · 1/25 + 16/25 = 4/5, an error of √(4/5 / 4 / 5) = 1/5.
  const auto paired = [](const Measure& of_a, const Measure& of_b) {
    std::vector<double> differences;
    for (std::size_t i = 0; i < of_a.deviations.size(); ++i)
      differences.push_back(of_b.deviations[i] - of_a.deviations[i]);
    return *StandardError(differences);
  };
  REQUIRE(a.measures[0].name == "acc");
  CHECK(paired(a.measures[0], b.measures[0]) == doctest::Approx(0.2));
  // Perplexities move by a thousandth of their derivative where one of 1,000 examples of each kind comes once more.
  REQUIRE(a.measures[1].name == "perplexity");
  for (std::size_t i = 0; i < 5; ++i) {
    const std::vector<double> costs = {1, 2, 3, 4, 5};
    constexpr double kTimes = 1000;
    const double more = std::exp((kTimes * 15 + costs[i]) / (kTimes * 5 + 1));
    CHECK((more - std::exp(3.0)) * kTimes == doctest::Approx(a.measures[1].deviations[i]).epsilon(2e-3));
  }
  const nlohmann::json file = nlohmann::json::parse(DeviationsText(30, std::vector{a}));
  CHECK(file["iteration"] == 30);
  const nlohmann::json& kept = file["tasks"][a.task];
  CHECK(kept["units"] == a.units);
  REQUIRE(kept["measures"]["acc"].size() == 5);
  CHECK(kept["measures"]["perplexity"][4].get<double>() ==
        doctest::Approx(a.measures[1].deviations[4]).epsilon(1e-5));
  TaskResult overflowing = a;
  overflowing.measures[1].deviations[2] = std::numeric_limits<double>::infinity();
  const nlohmann::json left = nlohmann::json::parse(DeviationsText(30, std::vector{overflowing}));
  CHECK(left["tasks"][a.task]["measures"].contains("acc"));
  CHECK_FALSE(left["tasks"][a.task]["measures"].contains("perplexity"));
  WriteText(dir.path() + "/five.jsonl", lines + "{\"text\": \"y d\"}\n");
  CHECK(MakeTask(*settings, tokenizer, 301, 8, 5)->contents != task->contents);
}

TEST_CASE("tasks: what is wrong with a line of examples is said with its place") {
  CHECK(ErrorOfExamples("lambada", "{\"text\": \"x y\"}\n{\"tekst\": \"a\"}\n") ==
        "bad.jsonl:2: error: the key \"text\" is missing");
  CHECK(ErrorOfExamples("lambada", "{\"text\": 7}\n") ==
        "bad.jsonl:1: error: \"text\" is a number, but must be a text");
  CHECK(ErrorOfExamples("lambada", "[1]\n") ==
        "bad.jsonl:1: error: the line is a list, but must be an object");
  CHECK(Contains(ErrorOfExamples("perplexity", "{\"text\": \"a b\"}\n{\"text\": \n"), "bad.jsonl:2:"));
  CHECK(ErrorOfExamples("perplexity", "\n \n") == "bad.jsonl: there is no example");
  CHECK(ErrorOfExamples("multiple_choice", R"({"context": "x", "choices": ["y"], "answer": 0})") ==
        "bad.jsonl:1: error: \"choices\" must be a list of two texts or more");
  CHECK(ErrorOfExamples("multiple_choice", R"({"context": "x", "choices": ["y", "z"], "answer": 2})") ==
        "bad.jsonl:1: error: \"answer\" must be the number of the right choice, from 0 to 1");
  CHECK(ErrorOfExamples("multiple_choice", R"({"context": "x", "choices": ["y", "z"]})") ==
        "bad.jsonl:1: error: the key \"answer\" is missing");
  CHECK(ErrorOfExamples("multiple_choice", R"({"context": "x", "answer": 0})") ==
        "bad.jsonl:1: error: the key \"choices\" is missing");
  CHECK(ErrorOfExamples("lambada", "a text\n").ends_with("; each line of this task is a JSON object"));
  CHECK(ErrorOfExamples("lambada", R"({"text": "a b", "text": "c d"})")
            .find(":1: error: the key \"text\" stands twice in one object") != std::string::npos);
  CHECK(ErrorOfExamples("multiple_choice", R"({"context": "x", "choices": ["y", ""], "answer": 1})") ==
        "bad.jsonl:1: error: a choice is empty, so it has no length to divide by");
  CHECK(ErrorOfExamples("lambada", R"({"text": "a b "})") ==
        "bad.jsonl:1: error: the text ends with a blank, so that there is no last word to predict");
  CHECK(ErrorOfExamples("lambada", "{\"text\": \"x y\"}\n{\"text\": \"\"}") ==
        "bad.jsonl:2: error: the text is empty, so that there is no last word to predict");
  CHECK(ErrorOfExamples("lambada", R"({"text": "a xxxxxxxxxxxxxxxxx"})") ==
        "bad.jsonl:1: error: the continuation has 18 tokens, but a model with a window of 8 predicts no more "
        "at once");
}

TEST_CASE("tasks: what is wrong with a task is said with its place") {
  CHECK(Contains(Message(ReadTask("piqa=x.jsonl").status()),
                 "perplexity, wikitext, wikitext103, lambada, multiple_choice"));
  CHECK(Contains(Message(ReadTask("lambada=").status()), "behind it a file"));
  CHECK(Contains(Message(ReadTask("lambada.jsonl").status()), "FORM=FILE or a file that ends in .toml"));
  CHECK(Contains(Message(ReadTask("/nowhere/a.toml").status()), "/nowhere/a.toml"));
  CHECK(Contains(ErrorOfTaskFile("file = \"x\"\n"), "the task has no form"));
  CHECK(Contains(ErrorOfTaskFile("form = \"lambada\"\n"), "the task has no file of examples"));
  CHECK(Contains(ErrorOfTaskFile("form = \"lambada\"\nfile = \"x\"\nstride = 3\n"),
                 "task.toml:3:1: error: a task of this form has no key 'stride'"));
  CHECK(Contains(ErrorOfTaskFile("form = \"lambada\"\nfile = \"x\"\ntarget = \"words\"\n"),
                 "target is the string \"words\", but must be one of word, strict, token"));
  CHECK(Contains(ErrorOfTaskFile("form = \"perplexity\"\nfile = \"x\"\nwindow = 0\n"),
                 "must be an integer from 1"));
  CHECK(Contains(ErrorOfTaskFile("form = \"perplexity\"\nfile = \"x\"\nstride = 4\n"),
                 "rolling windows have no stride"));
  CHECK(Contains(ErrorOfTaskFile("form = \"lambada\"\nfile = \"x\"\nname = \"a/b\"\n"), "letters, digits"));
  const auto twice = ReadTasks({"lambada=a.jsonl", "lambada=b.jsonl"});
  REQUIRE_FALSE(twice.ok());
  CHECK(Contains(Message(twice.status()), "two tasks are called lambada: of a.jsonl and b.jsonl"));
  // Neither read nor waited for.
  const data::TempDir dir;
  REQUIRE(mkfifo((dir.path() + "/pipe").c_str(), 0600) == 0);
  for (const std::string& file : {dir.path() + "/pipe", dir.path(), dir.path() + "/none"}) {
    const TaskSettings no_file{.name = "no_file", .file = file};
    CHECK(Contains(Message(MakeTask(no_file, OracleTokenizer(), 301, 8, 0).status()), file));
  }
  TaskSettings wide{.name = "wide", .file = "none", .window = 9};
  CHECK(Contains(Message(MakeTask(wide, OracleTokenizer(), 301, 8, 0).status()),
                 "a window of 9 tokens, but the model's samples have 8"));
}

}  // namespace engine::evaluate

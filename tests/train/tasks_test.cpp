// Tasks of evaluations: a model that has learned a pattern and one that has learned nothing, every layout, and what is told of it.
#include <algorithm>
#include <cmath>
#include <random>

#include "engine/train/evaluation.h"
#include "engine/train/model_evaluation.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

constexpr const char* kPattern = "abcdefgh";

std::string PatternFrom(size_t begin, size_t count) {
  std::string text;
  for (size_t i = begin; i < begin + count; ++i) text += kPattern[i % 8];
  return text;
}

// A data set of nothing but the pattern, and tasks that ask for it: DIR/text, choices.jsonl, words.jsonl, texts.jsonl.
void WritePattern(const TempDir& folder) {
  auto writer = data::IndexedDatasetWriter::Create(folder / "text", data::TokenType::kU16);
  REQUIRE(writer.ok());
  std::string words, texts;
  for (size_t document = 0; document < 60; ++document) {
    const std::string text = PatternFrom(document * 3, 40);
    const std::vector<std::int32_t> tokens(text.begin(), text.end());
    REQUIRE((*writer)->AddDocument({&tokens, 1}).ok());
    if (document >= 24) continue;
    words += nlohmann::json{{"text", PatternFrom(document, 11)}}.dump() + "\n";
    texts += nlohmann::json{{"text", PatternFrom(document, 30)}}.dump() + "\n";
  }
  REQUIRE((*writer)->Finish().ok());
  std::mt19937 draw(1);
  std::string choices;
  for (size_t question = 0; question < 120; ++question) {
    std::vector<std::string> wrong;
    const std::string right = PatternFrom(question + 9, 3);
    for (size_t shift = 2; shift < 5; ++shift) wrong.push_back(PatternFrom(question + 9 + shift, 3));
    const size_t answer = draw() % 4;
    wrong.insert(wrong.begin() + static_cast<std::ptrdiff_t>(answer), right);
    choices +=
        nlohmann::json{{"context", PatternFrom(question, 9)}, {"choices", wrong}, {"answer", answer}}.dump() +
        "\n";
  }
  data::WriteFile(folder / "choices.jsonl", choices);
  data::WriteFile(folder / "choices.toml",
                  "form = \"multiple_choice\"\nfile = \"choices.jsonl\"\ndelimiter = \"\"\n");
  data::WriteFile(folder / "words.jsonl", words);
  data::WriteFile(folder / "words.toml", "form = \"lambada\"\nfile = \"words.jsonl\"\ntarget = \"token\"\n");
  data::WriteFile(folder / "texts.jsonl", texts);
}

recipe::Recipe PatternRecipe(const TempDir& folder, std::vector<std::string> sets) {
  sets.insert(sets.begin(),
              {"evaluation.interval=1", "evaluation.iterations=1",
               fmt::format("evaluation.tasks=[\"{}\", \"{}\", \"perplexity={}\"]", folder / "choices.toml",
                           folder / "words.toml", folder / "texts.jsonl")});
  return RunRecipe(folder, std::move(sets));
}

// What the last evaluation told.
nlohmann::json LastTasks(const std::string& out, const char* key = "tasks") {
  nlohmann::json last;
  for (const nlohmann::json& line : Metrics(out)) {
    if (line.contains(key)) last = line[key];
  }
  REQUIRE(last.is_object());
  return last;
}

const std::vector<std::string> kUntrained = {"training.iterations=1",         "training.micro_batch=2",
                                             "optimizer.learning_rate=1e-12", "model.dropout.embedding=0",
                                             "model.dropout.hidden=0",        "model.dropout.attention=0"};

}  // namespace

TEST_CASE("tasks: a model that has learned the pattern knows all, and one that has learned nothing guesses") {
  const TempDir folder;
  WritePattern(folder);
  MustRun(PatternRecipe(folder, kUntrained), folder / "untrained");
  const nlohmann::json before = LastTasks(folder / "untrained");
  // 120 questions of four choices: four standard deviations of chance, √(0.25 · 0.75 / 120) = 0.04.
  CHECK(std::abs(before["choices/acc"].get<double>() - 0.25) < 0.16);
  // Each of 300 tokens is about as likely as any other: logits differ by some tenths.
  CHECK(std::abs(before["perplexity/perplexity"].get<double>() / 300 - 1) < 0.3);
  CHECK(std::abs(before["perplexity/bits_per_byte"].get<double>() - std::log2(300.0)) < 0.4);
  CHECK(before["words/acc"].get<double>() < 0.5);

  const std::string log =
      MustRun(PatternRecipe(folder, {"training.iterations=60", "optimizer.learning_rate=2e-2",
                                     "evaluation.interval=60", "model.dropout.embedding=0",
                                     "model.dropout.hidden=0", "model.dropout.attention=0"}),
              folder / "trained");
  const nlohmann::json after = LastTasks(folder / "trained");
  CHECK(after["choices/acc"] == 1);
  CHECK(after["choices/acc_norm"] == 1);
  CHECK(after["choices/acc_bytes"] == 1);
  CHECK(after["words/acc"] == 1);
  CHECK(after["words/perplexity"].get<double>() < 1.2);
  CHECK(LastTasks(folder / "trained", "task_errors")["choices/acc"] == 0);
  CHECK(log.find(" choices (120 examples) | acc: 1 ± 0 |") != std::string::npos);

  // The same of the checkpoint, on one rank with rows of another length and another number of them at a time.
  const absl::StatusOr<EvaluatedModel> model = ModelOfFolder(folder / "trained");
  REQUIRE_MESSAGE(model.ok(), Message(model.status()));
  std::vector<AskedTask> asked;
  const absl::Status status = EvaluateModel(
      *model, {.tasks = {folder / "choices.toml", "perplexity=" + folder / "texts.jsonl"}, .batch = 3},
      CpuDevice(), [&](const AskedTask& task) { asked.push_back(task); });
  REQUIRE_MESSAGE(status.ok(), Message(status));
  REQUIRE(asked.size() == 2);
  CHECK(asked[0].result.measures[0].value == 1);
  CHECK(std::count(asked[0].samples.begin(), asked[0].samples.end(), '\n') == 120);
  CHECK(std::abs(asked[1].result.measures[0].value / after["perplexity/perplexity"].get<double>() - 1) <
        1e-5);

  // How far each example moved each measure, of the last evaluation.
  std::ifstream kept(folder / "trained/task_deviations.json");
  const nlohmann::json deviations = nlohmann::json::parse(kept);
  CHECK(deviations["iteration"] == 60);
  CHECK(deviations["tasks"]["choices"]["measures"]["acc"].size() == 120);
  CHECK(deviations["tasks"]["words"]["measures"]["perplexity"].size() > 1);

  // And on the ranks of a layout that the run had not.
  for (const driver::ModelLayout& layout : {driver::ModelLayout{.tp = 2, .pp = 2}, {.dp = 2, .cp = 2}}) {
    CAPTURE(layout.tp);
    const absl::StatusOr<EvaluatedModel> split = ModelOfFolder(folder / "trained", layout);
    REQUIRE_MESSAGE(split.ok(), Message(split.status()));
    CHECK(split->recipe.world_size() == 4);
    std::vector<evaluate::TaskResult> results;
    const absl::Status ran = EvaluateModel(
        *split, {.tasks = {folder / "choices.toml", "perplexity=" + folder / "texts.jsonl"}, .batch = 3},
        CpuDevice(), [&](const AskedTask& task) { results.push_back(task.result); });
    REQUIRE_MESSAGE(ran.ok(), Message(ran));
    REQUIRE(results.size() == 2);
    CHECK(results[0].measures[0].value == 1);
    CHECK(results[1].measures[0].value == doctest::Approx(asked[1].result.measures[0].value).epsilon(1e-5));
  }
  CHECK(Message(ModelOfFolder(folder / "trained", {.tp = 3}).status()).starts_with("--tp 3: "));
  CHECK(Message(ModelOfFolder(folder / "trained", {.ep = 2}).status()).starts_with("--ep 2: "));
}

TEST_CASE("tasks: every layout comes to what one rank comes to") {
  const TempDir folder;
  WritePattern(folder);
  MustRun(PatternRecipe(folder, kUntrained), folder / "one");
  const nlohmann::json expected = LastTasks(folder / "one");
  CHECK(expected.size() == 9);
  int n = 0;
  for (const std::string layout :
       {"parallelism.dp=2", "parallelism.tp=2", "parallelism.pp=2", "parallelism.cp=2",
        "parallelism.dp=2 parallelism.tp=2 parallelism.sequence_parallel=true",
        "parallelism.cp=2 parallelism.pp=2", "parallelism.dp=3 training.pad_batch=true"}) {
    INFO("layout " << layout);
    std::vector<std::string> sets = kUntrained;
    for (size_t begin = 0; begin < layout.size();) {
      const size_t end = std::min(layout.find(' ', begin), layout.size());
      sets.push_back(layout.substr(begin, end - begin));
      begin = end + 1;
    }
    const std::string out = folder / fmt::format("layout{}", n++);
    MustRun(PatternRecipe(folder, sets), out);
    const nlohmann::json actual = LastTasks(out);
    for (const auto& [name, value] : expected.items()) {
      INFO(name);
      REQUIRE(actual.contains(name));
      // A near tie may fall the other way.
      const bool share = name.find("acc") != std::string::npos;
      CHECK(std::abs(actual[name].get<double>() - value.get<double>()) <=
            (share ? 0.05 : 1e-5 * value.get<double>()));
    }
  }
}

TEST_CASE("tasks: what is wrong is said before anything runs") {
  const TempDir folder;
  WritePattern(folder);
  const auto error = [&](const std::string& tasks) {
    const RunResult result = RunCaught(
        RunRecipe(folder, {"evaluation.interval=1", "evaluation.tasks=[" + tasks + "]"}), folder / "run");
    REQUIRE_FALSE(result.status.ok());
    CHECK_FALSE(std::filesystem::exists(folder / "run/metrics.jsonl"));
    return Message(result.status);
  };
  const std::string none = error("\"lambada=" + folder / "none.jsonl\"");
  CHECK(none.starts_with("evaluation.tasks (--set:"));
  CHECK(none.ends_with("): cannot open " + (folder / "none.jsonl") + ": No such file or directory"));
  data::WriteFile(folder / "bad.jsonl", "{\"text\": \"a b\"}\n{}\n");
  CHECK(
      error("\"lambada=" + folder / "bad.jsonl\"").find("bad.jsonl:2: error: the key \"text\" is missing") !=
      std::string::npos);
  CHECK(error("\"lambada\"").find("a task is FORM=FILE") != std::string::npos);

  // By the check of a recipe, which reads no data.
  const auto found = [&](const std::string& tasks, const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"evaluation.interval=1", "evaluation.tasks=[" + tasks + "]"};
    sets.insert(sets.end(), more.begin(), more.end());
    const std::optional<Diagnostic> diagnostic = CheckTasks(RunRecipe(folder, sets));
    return diagnostic ? diagnostic->message : "";
  };
  CHECK(found("\"lambada=a.jsonl\", \"perplexity=a.jsonl\", \"none.toml\"", {}).empty());
  CHECK(found("\"lambada=a.jsonl\", \"lambada=b.jsonl\"", {})
            .starts_with("two tasks are called lambada: of a.jsonl and b.jsonl"));
  CHECK(found("\"lambada=a.jsonl\"", {"data.tokenizer.kind=none"}) ==
        "tasks are texts, and there is no tokenizer (data.tokenizer.kind)");
}

}  // namespace engine::train::testing

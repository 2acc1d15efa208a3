// What a run keeps of the folder that it came from: evaluation, the length of sequences, and what an export may not do.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/checkpoint/layout.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/train/hf_export.h"
#include "engine/train/hf_import.h"
#include "engine/train/model_evaluation.h"
#include "tests/hf/oracle_case.h"
#include "tests/train/run_testing.h"

namespace engine::hf::testing {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using train::testing::Contains;
using train::testing::CpuDevice;

// A tokenizer.json of words w0, w1, …, of which the last token, </s>, ends a document.
std::string WordTokenizer(std::int64_t tokens) {
  nlohmann::json vocab;
  for (std::int64_t w = 0; w + 1 < tokens; ++w) vocab["w" + std::to_string(w)] = w;
  vocab["</s>"] = tokens - 1;
  return nlohmann::json{{"version", "1.0"},
                        {"added_tokens",
                         {{{"id", tokens - 1},
                           {"content", "</s>"},
                           {"special", true},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false}}}},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", {{"type", "Whitespace"}}},
                        {"post_processor", nullptr},
                        {"decoder", nullptr},
                        {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "w0"}}}}
      .dump();
}

// A case of the oracle as a folder with a tokenizer.
void WriteFolder(const std::string& folder, const std::string& name, bool bfloat16 = false) {
  const OracleFile oracle;
  fs::create_directories(folder);
  WriteModel(folder, oracle.config(name), oracle.Tensors(name), bfloat16);
  data::WriteFile(folder + "/tokenizer.json",
                  WordTokenizer(oracle.config(name)["vocab_size"].get<std::int64_t>()));
}

void ImportTo(const std::string& folder, const std::string& out) {
  const absl::StatusOr<train::HfImport> imported = train::ImportHf(folder, out, CpuDevice().profile);
  REQUIRE_MESSAGE(imported.ok(), Message(imported.status()));
}

std::vector<evaluate::Measure> MeasuresOf(const std::string& folder, const std::string& task) {
  const absl::StatusOr<train::EvaluatedModel> model = train::ModelOfFolder(folder);
  REQUIRE_MESSAGE(model.ok(), Message(model.status()));
  std::vector<evaluate::Measure> measures;
  const absl::Status status =
      train::EvaluateModel(*model, {.tasks = {task}}, CpuDevice(),
                           [&](const train::AskedTask& asked) { measures = asked.result.measures; });
  REQUIRE_MESSAGE(status.ok(), Message(status));
  return measures;
}

}  // namespace

TEST_CASE("a Hugging Face folder is evaluated as the run that is imported from it") {
  const TempDir folder;
  WriteFolder(folder / "model", "llama");
  ImportTo(folder / "model", folder / "run");
  data::WriteFile(folder / "texts.jsonl", "{\"text\": \"w1 w5 w9 w2\"}\n{\"text\": \"w7 w8\"}\n");
  const std::string task = "perplexity=" + folder / "texts.jsonl";
  const std::vector<evaluate::Measure> here = MeasuresOf(folder / "model", task);
  const std::vector<evaluate::Measure> there = MeasuresOf(folder / "run", task);
  REQUIRE(!here.empty());
  REQUIRE(here.size() == there.size());
  for (std::size_t i = 0; i < here.size(); ++i) {
    CHECK(here[i].name == there[i].name);
    CHECK(here[i].value == there[i].value);
  }
  // The folder is gone, or has no weights.
  CHECK(Contains(Message(train::ModelOfFolder(folder / "nowhere").status()), "nowhere"));
  CHECK(Contains(Message(train::ModelOfFolder(folder / "run/hf").status()), "model.safetensors"));
}

TEST_CASE("an imported recipe's sequences are no longer than the model's positions") {
  const OracleFile oracle;
  const TempDir folder;
  // A learned table of 29 rows, one of 29 rows behind two others, and rotary positions for 29.
  for (const std::string name : {"gpt2", "opt", "llama"}) {
    INFO(name);
    WriteFolder(folder / name, name);
    const absl::StatusOr<train::HfImport> imported = train::RecipeOfHf(folder / name);
    REQUIRE_MESSAGE(imported.ok(), Message(imported.status()));
    CHECK(Contains(imported->recipe, "\nsequence_length = 29\n"));
  }
  nlohmann::json config = oracle.config("llama");
  config["max_position_embeddings"] = 4096;
  data::WriteFile(folder / "llama/config.json", config.dump());
  const absl::StatusOr<train::HfImport> longer = train::RecipeOfHf(folder / "llama");
  REQUIRE_MESSAGE(longer.ok(), Message(longer.status()));
  CHECK(Contains(longer->recipe, "\nsequence_length = 256\n"));
  CHECK(MostPositions({{"text_config", {{"max_position_embeddings", 29}}}}) == 29);
  CHECK(MostPositions({{"model_type", "llama"}}) == std::nullopt);
}

}  // namespace engine::hf::testing

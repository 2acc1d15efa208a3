// What a run keeps of the folder that it came from: evaluation, the length of sequences, and what an export may not do.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/layout.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/train/hf_export.h"
#include "engine/train/hf_import.h"
#include "engine/train/model_evaluation.h"
#include "tests/hf/oracle_case.h"
#include "tests/hf/sanitized.h"
#include "tests/hf/word_tokenizer.h"
#include "tests/train/run_testing.h"

namespace engine::hf::testing {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using train::testing::Contains;
using train::testing::CpuDevice;

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

// Trains an imported run's recipe for an iteration, with settings beside.
void TrainFrom(const std::string& imported, const std::string& out, std::vector<std::string> sets) {
  sets.insert(sets.end(), {"training.iterations=1", "data.sequence_length=16", "optimizer.learning_rate=1e-2",
                           "schedule.kind=constant", "schedule.warmup_fraction=0"});
  const recipe::LoadResult loaded = model::Load(imported + "/recipe.toml", {.sets = sets, .root = ""});
  REQUIRE_MESSAGE(loaded.ok(), Format(loaded.diagnostics.front()));
  train::testing::MustRun(loaded.recipe, out);
}

train::HfExport ExportTo(const std::string& run, const std::string& out,
                         const train::HfExportOptions& options) {
  const absl::StatusOr<train::HfExport> exported = train::ExportHf(run, out, options);
  REQUIRE_MESSAGE(exported.ok(), Message(exported.status()));
  return *exported;
}

nlohmann::json JsonIn(const std::string& path) { return nlohmann::json::parse(data::ReadFile(path)); }

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

TEST_CASE("a Hugging Face folder is evaluated as the run that is imported from it" *
          doctest::skip(kSanitized)) {
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

TEST_CASE("an export never takes the place of a folder that the weights came from" *
          doctest::skip(kSanitized)) {
  const TempDir folder;
  WriteFolder(folder / "model", "llama");
  ImportTo(folder / "model", folder / "run");
  TrainFrom(folder / "run", folder / "trained", {});
  TrainFrom(folder / "run", folder / "direct", {"training.weights_from=\"" + folder / "model" + "\""});
  TrainFrom(folder / "run", folder / "lora",
            {"lora.rank=2", "training.weights_from=\"" + folder / "trained" + "\""});
  fs::create_directory_symlink(folder / "model", folder / "link");
  const std::string weights = data::ReadFile(folder / "model/model.safetensors");
  const std::vector<std::pair<std::string, train::HfExportOptions>> runs = {
      {"run", {.dtype = "bf16"}},
      {"run/checkpoints/iteration_0000000", {.dtype = "bf16"}},
      {"trained", {.dtype = "bf16"}},
      {"direct", {.dtype = "bf16"}},
      {"lora", {.dtype = "bf16", .merge = true}}};
  for (const auto& [run, options] : runs) {
    for (const char* out : {"model", "model/", "link", "run/../model"}) {
      INFO(run, " to ", out);
      const absl::StatusOr<train::HfExport> exported = train::ExportHf(folder / run, folder / out, options);
      REQUIRE(!exported.ok());
      CHECK(Contains(Message(exported.status()), "the run's weights came from this folder"));
      CHECK(data::ReadFile(folder / "model/model.safetensors") == weights);
    }
  }
  // A folder of the same kind that is none of those is replaced.
  fs::copy(folder / "model", folder / "copy");
  ExportTo(folder / "run", folder / "copy", {.dtype = "bf16"});
  CHECK(data::ReadFile(folder / "copy/model.safetensors").size() < weights.size());
}

TEST_CASE("an exported adapter names the folder that has the weights beside it, where there is one" *
          doctest::skip(kSanitized)) {
  const TempDir folder;
  WriteFolder(folder / "model", "llama");
  ImportTo(folder / "model", folder / "run");
  const auto run_from = [&](const std::string& name, const std::string& from, const std::string& rank) {
    std::vector<std::string> sets = {"training.weights_from=\"" + folder / from + "\""};
    if (!rank.empty()) sets.push_back("lora.rank=" + rank);
    TrainFrom(folder / "run", folder / name, sets);
  };
  run_from("lora", "run", "2");
  run_from("longer", "lora", "2");  // goes on with the adapters of the first
  run_from("trained", "run", "");
  run_from("behind", "trained", "2");
  const auto base = [&](const std::string& run, const std::string& note) {
    const train::HfExport exported = ExportTo(folder / run, folder / run + "-adapter", {.adapter = true});
    std::string notes;
    for (const std::string& text : exported.notes) notes += text + "\n";
    CHECK((note.empty() ? notes.empty() : Contains(notes, note)));
    return JsonIn(folder / run + "-adapter/adapter_config.json")["base_model_name_or_path"]
        .get<std::string>();
  };
  const std::string model = fs::canonical(folder / "model").string();
  const std::string files = fs::canonical(folder / "run/hf").string();
  CHECK(base("lora", "") == model);
  CHECK(base("longer", "") == model);
  // The weights beside these adapters are in no folder: the model's were trained before.
  CHECK(base("behind", "no folder with the weights beside the adapters is known") == files);
  fs::remove(folder / "model/model.safetensors");
  CHECK(base("lora", "no folder with the weights beside the adapters is known") == files);
}

TEST_CASE("a run that was not imported is exported with the tokenizer that its recipe names" *
          doctest::skip(kSanitized)) {
  const TempDir folder;
  const std::string words = WordTokenizer(200), config = R"({"eos_token": "</s>"})";
  const auto write = [&](const std::string& file, const std::string& text) {
    fs::create_directories(fs::path(folder / file).parent_path());
    data::WriteFile(folder / file, text);
  };
  write("plain/tokenizer.json", words);
  write("plain/tokenizer_config.json", config);
  write("plain/notes.txt", "no file of a tokenizer");
  write("full/tokenizer.json", words);
  write("full/generation_config.json", R"({"eos_token_id": [7, 199]})");
  write("other/words.json", words);
  write("other/merges.txt", "another tokenizer's");
  const auto run = [&](const std::string& name, const std::vector<std::string>& tokenizer) {
    std::vector<std::string> sets = {"model.dims={ D = 32, L = 2, H = 4, K = 2, E = 8, F = 48, V = 200 }",
                                     "model.vocab_multiple=8",
                                     "data.source=random",
                                     "data.sequence_length=16",
                                     "optimizer.learning_rate=1e-2",
                                     "schedule.kind=constant",
                                     "training.global_batch=8",
                                     "training.micro_batch=2",
                                     "training.iterations=1",
                                     "logging.interval=1000"};
    sets.insert(sets.end(), tokenizer.begin(), tokenizer.end());
    const recipe::LoadResult loaded =
        model::Load(ENGINE_SOURCE_DIR "/configs/blocks/llama.toml", {.sets = sets, .root = ""});
    REQUIRE_MESSAGE(loaded.ok(), Format(loaded.diagnostics.front()));
    train::testing::MustRun(loaded.recipe, folder / name);
  };
  const auto exported = [&](const std::string& name, const std::string& path) {
    run(name, {"data.tokenizer.kind=file", "data.tokenizer.path=\"" + folder / path + "\""});
    return ExportTo(folder / name, folder / name + "-hf", {.dtype = "fp32"});
  };
  const auto check = [&](const std::string& out, bool beside) {
    INFO(out);
    CHECK(data::ReadFile(folder / out + "/tokenizer.json") == words);
    CHECK(fs::exists(folder / out + "/tokenizer_config.json") == beside);
    for (const char* file : {"config.json", "generation_config.json"}) {
      const nlohmann::json keys = JsonIn(folder / out + "/" + file);
      REQUIRE(keys.contains("bos_token_id"));
      CHECK(keys["bos_token_id"].is_null());
      CHECK(keys["eos_token_id"] == 199);
    }
  };
  CHECK(exported("of_folder", "plain").notes.empty());
  check("of_folder-hf", true);
  CHECK(!fs::exists(folder / "of_folder-hf/notes.txt"));
  CHECK(exported("of_file", "plain/tokenizer.json").notes.empty());
  check("of_file-hf", true);
  CHECK(exported("of_other", "other/words.json").notes.empty());
  check("of_other-hf", false);
  CHECK(!fs::exists(folder / "of_other-hf/merges.txt"));
  CHECK(exported("of_full", "full").notes.empty());
  CHECK(data::ReadFile(folder / "of_full-hf/generation_config.json") == R"({"eos_token_id": [7, 199]})");
  CHECK(JsonIn(folder / "of_full-hf/config.json")["eos_token_id"] == 199);

  // It is a model of the hub's like any other.
  const absl::StatusOr<train::HfImport> again = train::RecipeOfHf(folder / "of_folder-hf");
  REQUIRE_MESSAGE(again.ok(), Message(again.status()));
  CHECK(Contains(again->recipe, "kind = \"file\""));

  // The tokenizer's folder is no place for an export, even where it is a model's.
  write("plain/config.json", "{}");
  const absl::StatusOr<train::HfExport> refused =
      train::ExportHf(folder / "of_file", folder / "plain", {.dtype = "fp32"});
  REQUIRE(!refused.ok());
  CHECK(Contains(Message(refused.status()), "the run's tokenizer is read from this folder"));
  CHECK(data::ReadFile(folder / "plain/config.json") == "{}");

  // What is not there is said.
  fs::remove_all(folder / "full");
  const train::HfExport gone = ExportTo(folder / "of_full", folder / "gone", {.dtype = "fp32"});
  REQUIRE(gone.notes.size() == 1);
  CHECK(Contains(gone.notes[0],
                 "there are no files of a tokenizer that transformers knows at " + folder / "full"));
  CHECK(!JsonIn(folder / "gone/config.json").contains("eos_token_id"));
  run("none", {});
  const train::HfExport none = ExportTo(folder / "none", folder / "none-hf", {.dtype = "fp32"});
  REQUIRE(none.notes.size() == 1);
  CHECK(Contains(none.notes[0], "data.tokenizer.path names no tokenizer"));
}

}  // namespace engine::hf::testing

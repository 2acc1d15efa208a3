// Whole ways: a folder becomes a run, trains in any layout, and becomes a folder again.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/hf/compare.h"
#include "engine/hf/family_def.h"
#include "engine/hf/folder.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/train/hf_export.h"
#include "engine/train/hf_import.h"
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

// The bytes of each tensor of a folder, behind its type and shape.
std::map<std::string, std::string> BytesOf(const std::string& folder) {
  const absl::StatusOr<Folder> opened = Folder::Open(folder);
  REQUIRE_MESSAGE(opened.ok(), Message(opened.status()));
  std::map<std::string, std::string> tensors;
  for (const std::string& name : opened->names()) {
    const Folder::Entry entry = *opened->Find(name);
    const auto bytes = entry.file->DataOf(*entry.tensor);
    tensors[name] = fmt::format("{} {} ", Name(entry.tensor->type), entry.tensor->shape.ToString());
    tensors[name].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return tensors;
}

std::vector<std::string> NamesOf(const std::map<std::string, std::string>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : tensors) names.push_back(name);
  return names;
}

void MustImport(const std::string& folder, const std::string& out) {
  const absl::StatusOr<train::HfImport> imported = train::ImportHf(folder, out, CpuDevice().profile);
  REQUIRE_MESSAGE(imported.ok(), Message(imported.status()));
}

void MustExport(const std::string& run, const std::string& out, const train::HfExportOptions& options = {}) {
  const absl::StatusOr<train::HfExport> exported = train::ExportHf(run, out, options);
  REQUIRE_MESSAGE(exported.ok(), Message(exported.status()));
}

std::string WhyNotExported(const std::string& run, const std::string& out,
                           const train::HfExportOptions& options = {}) {
  const bool was_there = fs::exists(out);
  const absl::StatusOr<train::HfExport> exported = train::ExportHf(run, out, options);
  CHECK(!exported.ok());
  CHECK(fs::exists(out) == was_there);
  return Message(exported.status());
}

bool HasFamily(const nlohmann::json& config) {
  for (const Family& family : Families()) {
    for (const std::string_view type : family.model_types) {
      if (config["model_type"] == type) return true;
    }
  }
  return false;
}

// A model that splits evenly, drawn by the engine: a run whose last iteration has changed nothing.
recipe::Recipe SmallRecipe(const TempDir& folder, const std::string& blocks,
                           const std::vector<std::string>& more) {
  std::vector<std::string> sets = {
      "model.dims={ D = 32, L = 4, H = 4, K = 2, E = 8, F = 48, X = 4, T = 2, V = 200 }",
      "model.vocab_multiple=8",
      "model.init_std=0.2",
      "data.source=random",
      "data.sequence_length=16",
      "schedule.kind=constant",
      "optimizer.kind=sgd",
      "training.global_batch=8",
      "training.micro_batch=2",
      "logging.interval=1000"};
  sets.insert(sets.end(), more.begin(), more.end());
  (void)folder;
  const recipe::LoadResult loaded =
      model::Load(ENGINE_SOURCE_DIR "/configs/blocks/" + blocks + ".toml", {.sets = sets, .root = ""});
  REQUIRE_MESSAGE(loaded.ok(), Format(loaded.diagnostics.front()));
  return loaded.recipe;
}

// Three iterations from a folder in a layout, written as a folder.
std::map<std::string, std::string> TrainedFrom(const std::string& model, const TempDir& folder,
                                               const std::string& blocks, const std::string& name,
                                               std::vector<std::string> sets) {
  sets.insert(sets.end(), {"training.weights_from=\"" + model + "\"", "training.iterations=3"});
  train::testing::MustRun(SmallRecipe(folder, blocks, sets), folder / name);
  MustExport(folder / name, folder / (name + "-hf"), {.dtype = "fp32"});
  return BytesOf(folder / (name + "-hf"));
}

// The largest difference of two folders of fp32, as a part of the largest number.
double Apart(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  REQUIRE(NamesOf(a) == NamesOf(b));
  double largest = 0, apart = 0;
  for (const auto& [name, bytes] : a) {
    const std::string& other = b.at(name);
    REQUIRE(bytes.size() == other.size());
    const std::size_t head = bytes.find("] ") + 2;
    for (std::size_t i = head; i + 4 <= bytes.size(); i += 4) {
      float x = 0, y = 0;
      std::memcpy(&x, bytes.data() + i, 4);
      std::memcpy(&y, other.data() + i, 4);
      largest = std::max(largest, static_cast<double>(std::abs(x)));
      apart = std::max(apart, static_cast<double>(std::abs(x - y)));
    }
  }
  return apart / largest;
}

}  // namespace

TEST_CASE("a folder that becomes a run and a folder again has the same bytes, keys and files" *
          doctest::skip(kSanitized)) {
  const OracleFile oracle;
  std::set<std::string> types;
  for (const std::string& name : oracle.names()) {
    INFO(name);
    nlohmann::json config = oracle.config(name);
    if (config.contains("torch_dtype") && config["torch_dtype"] == "float16")
      config["torch_dtype"] = "float32";  // its numbers are bfloat16's
    REQUIRE(HasFamily(config));
    types.insert(config["model_type"].get<std::string>());
    const TempDir folder;
    fs::create_directories(folder / "model");
    WriteModel(folder / "model", config, oracle.Tensors(name),
               config.value("torch_dtype", config.value("dtype", "float32")) == "bfloat16");
    data::WriteFile(folder / "model/tokenizer.json", "{\"version\": \"1.0\"}");
    MustImport(folder / "model", folder / "run");
    MustExport(folder / "run", folder / "again");
    // A file in another form than the hub's, without a prefix or with all experts in one tensor, is written in the hub's.
    const bool other_form = name == "gpt2_bare" || name == "qwen3_moe_fused";
    CHECK((BytesOf(folder / "again") == BytesOf(folder / "model")) == !other_form);
    if (other_form) continue;
    CHECK(nlohmann::json::parse(data::ReadFile(folder / "again/config.json")) == config);
    CHECK(data::ReadFile(folder / "again/tokenizer.json") == "{\"version\": \"1.0\"}");
    // In shards, too; and again over itself.
    MustExport(folder / "run", folder / "again", {.shard_bytes = 20'000});
    CHECK(fs::exists(folder / "again/model.safetensors.index.json"));
    CHECK(BytesOf(folder / "again") == BytesOf(folder / "model"));
  }
  CHECK(types.size() == Families().size() - 1);  // of Gemma 3 with images there is no text alone
}

TEST_CASE("an imported model that is trained in any layout is written as one rank's is" *
          doctest::skip(kSanitized)) {
  struct Way {
    std::string blocks;
    std::vector<std::vector<std::string>> layouts;
  };
  const std::vector<Way> ways = {
      {"llama",
       {{"parallelism.tp=2", "parallelism.pp=2", "parallelism.dp=2"},
        {"parallelism.dp=4", "parallelism.zero_stage=3"},
        {"parallelism.cp=2", "parallelism.tp=2", "parallelism.sequence_parallel=true"}}},
      {"mixtral",
       {{"parallelism.ep=2", "parallelism.tp=2"}, {"parallelism.ep=4", "parallelism.zero_stage=1"}}}};
  for (const Way& way : ways) {
    if (FindFamily(way.blocks) == nullptr) continue;
    INFO(way.blocks);
    const TempDir folder;
    train::testing::MustRun(
        SmallRecipe(folder, way.blocks, {"optimizer.learning_rate=0", "training.iterations=1"}),
        folder / "drawn");
    MustExport(folder / "drawn", folder / "model", {.dtype = "fp32"});
    const auto one =
        TrainedFrom(folder / "model", folder, way.blocks, "one", {"optimizer.learning_rate=0.1"});
    CHECK(Apart(one, BytesOf(folder / "model")) > 1e-4);  // it has trained
    for (std::size_t i = 0; i < way.layouts.size(); ++i) {
      INFO("layout ", i);
      std::vector<std::string> sets = way.layouts[i];
      sets.emplace_back("optimizer.learning_rate=0.1");
      CHECK(Apart(TrainedFrom(folder / "model", folder, way.blocks, fmt::format("layout{}", i), sets), one) <
            2e-5);
      sets.back() = "optimizer.learning_rate=0";
      CHECK(TrainedFrom(folder / "model", folder, way.blocks, fmt::format("still{}", i), sets) ==
            BytesOf(folder / "model"));
    }
  }
}

TEST_CASE("two models are compared key by key and tensor by tensor") {
  const OracleFile oracle;
  const TempDir folder;
  for (const char* name : {"a", "b", "c"}) fs::create_directories(folder / name);
  OracleTensors tensors = oracle.Tensors("qwen3");
  WriteModel(folder / "a", oracle.config("qwen3"), tensors, true);
  WriteModel(folder / "c", oracle.config("qwen3"), tensors, false);  // the same numbers in float32
  nlohmann::json config = oracle.config("qwen3");
  config["rms_norm_eps"] = 0.5;
  tensors.at("model.norm.weight").values[3] += 2;
  tensors.at("model.norm.weight").values[5] = -tensors.at("model.norm.weight").values[5];
  tensors["more"] = tensors.at("model.norm.weight");
  tensors.erase("model.layers.0.mlp.up_proj.weight");
  tensors.at("model.layers.1.mlp.up_proj.weight").shape = {40, 37};
  WriteModel(folder / "b", config, tensors, false);
  const absl::StatusOr<ModelDifferences> same = CompareModels(folder / "a", folder / "c");
  REQUIRE_MESSAGE(same.ok(), Message(same.status()));
  CHECK(same->empty());
  CHECK(same->equal == static_cast<std::int64_t>(oracle.Tensors("qwen3").size()));
  const absl::StatusOr<ModelDifferences> found = CompareModels(folder / "a", folder / "b");
  REQUIRE_MESSAGE(found.ok(), Message(found.status()));
  REQUIRE(found->keys.size() == 1);
  CHECK(found->keys[0].key == "rms_norm_eps");
  CHECK(found->keys[0].b == "0.5");
  REQUIRE(found->tensors.size() == 4);
  CHECK(found->tensors[0].what == "only in a, [37, 40]");
  CHECK(found->tensors[1].what == "[37, 40] and [40, 37]");
  CHECK(found->tensors[2].name == "model.norm.weight");
  CHECK(found->tensors[2].differ == 2);
  CHECK(found->tensors[2].largest ==
        doctest::Approx(2 * std::max(1.0F, std::abs(tensors.at("model.norm.weight").values[5]))));
  CHECK(found->tensors[3].what == "only in b, [40]");
  CHECK(found->equal == same->equal - 3);
  CHECK(Contains(ToText(*found, "x", "y", false), "  rms_norm_eps: 1e-06 → 0.5"));
  CHECK(!CompareModels(folder / "a", folder / "nowhere").ok());
}

TEST_CASE("an imported run goes on from its weights with a new optimizer, in whatever folder") {
  const OracleFile oracle;
  const TempDir folder;
  fs::create_directories(folder / "model");
  WriteModel(folder / "model", oracle.config("qwen3"), oracle.Tensors("qwen3"), false);
  MustImport(folder / "model", folder / "run");
  const auto load = [&] {
    const recipe::LoadResult loaded =
        model::Load(folder / "run/recipe.toml",
                    {.sets = {"training.iterations=2", "data.sequence_length=16"}, .root = ""});
    REQUIRE_MESSAGE(loaded.ok(), Format(loaded.diagnostics.front()));
    return loaded.recipe;
  };
  CHECK(Contains(train::testing::MustRun(load(), folder / "elsewhere"), "the optimizer begins anew"));
  const train::testing::RunResult here = train::testing::MustRunAndNote(load(), folder / "run");
  CHECK(Contains(here.notes, "the checkpoint has weights alone: the optimizer begins anew"));
  CHECK((train::testing::TensorsOf(folder / "run", 2) == train::testing::TensorsOf(folder / "elsewhere", 2)));
  const recipe::LoadResult direct =
      model::Load(folder / "run/recipe.toml", {.sets = {"training.iterations=2", "data.sequence_length=16",
                                                        "training.weights_from=\"" + folder / "model" + "\""},
                                               .root = ""});
  REQUIRE(direct.ok());
  CHECK(Contains(train::testing::MustRun(direct.recipe, folder / "direct"),
                 "weights of " + folder / "model" + " (qwen3)"));
  CHECK((train::testing::TensorsOf(folder / "direct", 2) ==
         train::testing::TensorsOf(folder / "elsewhere", 2)));

  // Trained values are not bf16's: to round them is to be asked for.
  CHECK(Contains(WhyNotExported(folder / "run", folder / "out"),
                 "which BF16 cannot say exactly\n    hint: --dtype bf16"));
  MustExport(folder / "run", folder / "out", {.dtype = "bf16"});
  MustExport(folder / "run", folder / "first", {.iteration = 0});
  CHECK(NamesOf(BytesOf(folder / "first")) == NamesOf(BytesOf(folder / "model")));
}

TEST_CASE("an imported run names the folder's tokenizer, where that can be its model's") {
  const OracleFile oracle;
  const TempDir folder;
  fs::create_directories(folder / "model");
  WriteModel(folder / "model", oracle.config("llama"), oracle.Tensors("llama"), true);
  const std::int64_t rows = oracle.config("llama")["vocab_size"].get<std::int64_t>();
  const auto import = [&](const std::string& out) {
    const absl::StatusOr<train::HfImport> imported =
        train::ImportHf(folder / "model", folder / out, CpuDevice().profile);
    REQUIRE_MESSAGE(imported.ok(), Message(imported.status()));
    const recipe::LoadResult loaded = model::Load(folder / out + "/recipe.toml");
    REQUIRE(loaded.ok());
    return std::pair(loaded.recipe.data.tokenizer, imported->notes.back());
  };
  const auto [none, why] = import("bare");
  CHECK(none.kind == "none");
  CHECK(Contains(why, "has no tokenizer: no tokenizer.json"));
  // Words, of which the last ends a document.
  const auto write = [&](std::int64_t words) {
    std::ofstream(folder / "model" + "/tokenizer.json") << WordTokenizer(words);
  };
  write(rows);
  const auto [own, next] = import("run");
  CHECK(own.kind == "file");
  CHECK(own.path == folder / "run" + "/hf");
  CHECK(Contains(next, "--tokenizer-path " + own.path));
  const auto tokenizer = data::MakeTokenizer(own);
  REQUIRE_MESSAGE(tokenizer.ok(), Message(tokenizer.status()));
  CHECK((*tokenizer)->vocab_size() == rows);
  write(rows + 1);
  const auto [larger, too_many] = import("larger");
  CHECK(larger.kind == "none");
  CHECK(
      Contains(too_many, fmt::format("has {} tokens, the model's table of tokens {} rows", rows + 1, rows)));
}

TEST_CASE("what cannot be imported or exported is refused, and nothing is left") {
  const OracleFile oracle;
  const TempDir folder;
  fs::create_directories(folder / "model");
  WriteModel(folder / "model", oracle.config("llama"), oracle.Tensors("llama"), true);
  const auto why = [&](const std::string& from, const std::string& out) {
    const bool was_there = fs::exists(out);
    const auto imported = train::ImportHf(from, out, CpuDevice().profile);
    CHECK(!imported.ok());
    CHECK(fs::exists(out) == was_there);
    for (const auto& entry : fs::directory_iterator(folder.path()))
      CHECK(entry.path().string().find("importing") == std::string::npos);
    return Message(imported.status());
  };
  fs::create_directories(folder / "there");
  CHECK(Contains(why(folder / "model", folder / "there"), "it is there already"));
  CHECK(Contains(why(folder / "nowhere", folder / "run"), "config.json"));
  fs::create_directories(folder / "bare");
  fs::copy_file(folder / "model/config.json", folder / "bare/config.json");
  CHECK(Contains(why(folder / "bare", folder / "run"), "model.safetensors"));
  // Other sizes than the config's, and tensors that are missing or left over.
  OracleTensors tensors = oracle.Tensors("llama");
  const OracleTensor norm = tensors.at("model.norm.weight");
  tensors.erase("model.norm.weight");
  tensors["model.layers.9.extra.weight"] = norm;
  fs::create_directories(folder / "other");
  WriteModel(folder / "other", oracle.config("llama"), tensors, true);
  const std::string message = why(folder / "other", folder / "run");
  CHECK(Contains(message, "model.norm.weight [40] is not there"));
  CHECK(Contains(message, "model.layers.9.extra.weight [40] is no tensor of this model"));
  nlohmann::json config = oracle.config("llama");
  config["intermediate_size"] = 38;
  fs::create_directories(folder / "wide");
  WriteModel(folder / "wide", config, oracle.Tensors("llama"), true);
  CHECK(Contains(why(folder / "wide", folder / "run"), "is [37, 40], and the config asks for [38, 40]"));

  fs::create_directories(folder / "twice");
  data::WriteFile(
      folder / "twice/config.json",
      R"({"model_type": "llama", "a": {"b": 1}, "c": {"b": 1}, "vocab_size": 1, "vocab_size": 2})");
  CHECK(Contains(why(folder / "twice", folder / "run"),
                 "error: the key \"vocab_size\" stands twice in one object"));

  MustImport(folder / "model", folder / "run");
  data::WriteFile(folder / "there/notes.txt", "mine");
  CHECK(Contains(WhyNotExported(folder / "run", folder / "there"), "it holds other files than a model's"));
  CHECK(Contains(WhyNotExported(folder / "nowhere", folder / "out"), "there is no folder"));
  CHECK(Contains(WhyNotExported(folder / "run", folder / "run/hf"), "weights came from this folder"));
  CHECK(!fs::exists(folder / "run/hf/model.safetensors"));
  CHECK(Contains(WhyNotExported(folder / "run", folder / "out", {.dtype = "int8"}), "bf16, fp16 or fp32"));
  CHECK(Contains(WhyNotExported(folder / "run", folder / "out", {.family = "phi4"}), "phi4"));
}

}  // namespace engine::hf::testing

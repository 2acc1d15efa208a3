#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/hf/family.h"
#include "engine/hf/family_def.h"
#include "engine/model/build.h"
#include "engine/model/load.h"

namespace engine::hf {
namespace {

using nlohmann::json;

json Parsed(const std::string& text) {
  const absl::StatusOr<json> value = ParseJson(text, "config.json");
  INFO(text);
  REQUIRE(value.ok());
  return *value;
}

// `base` with other values; a key that is null in `changes` is taken out.
json With(json base, const std::string& changes) {
  const json others = Parsed(changes);
  for (const auto& [key, value] : others.items()) {
    base[key] = value;
    if (value.is_null()) base.erase(key);
  }
  return base;
}

// Every file has these.
json Written(const std::string& keys) {
  return With(
      Parsed(R"({"bos_token_id": 1, "eos_token_id": [2, 3], "initializer_range": 0.02, "use_cache": true,
                         "torch_dtype": "bfloat16", "transformers_version": "4.40.0"})"),
      keys);
}

json Llama2() {
  return Written(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_scaling": null, "pretraining_tp": 1, "tie_word_embeddings": false})");
}
json Llama31() {
  return Written(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false,
    "attention_dropout": 0.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
}
json Llama32() {
  return With(Llama31(),
              R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
    "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
}
json Qwen25() {
  return Written(R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "sliding_window": 32768, "max_window_layers": 21, "use_sliding_window": false,
    "attention_dropout": 0.0, "tie_word_embeddings": true})");
}

struct Published {
  std::string name;
  json config;
  std::int64_t parameters;
};

// Numbers of parameters as the releases have them (configs/models says them too).
std::vector<Published> PublishedModels() {
  return {
      {"llama2-7b", Llama2(), 6'738'415'616},
      {"llama3.1-8b", Llama31(), 8'030'261'248},
      {"llama3.2-1b", Llama32(), 1'235'814'400},
      {"qwen2.5-0.5b", Qwen25(), 494'032'768},
      {"qwen2.5-7b", With(Qwen25(), R"({"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
         "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
         "max_position_embeddings": 131072, "tie_word_embeddings": false})"),
       7'615'616'512},
  };
}

ImportedModel Imported(const json& config) {
  absl::StatusOr<ImportedModel> model = ImportConfig(config, "config.json");
  INFO(Message(model.status()));
  REQUIRE(model.ok());
  return *std::move(model);
}

// A whole recipe of an imported model, as `engine import hf --recipe` and [training] weights_from have one.
recipe::Recipe RecipeOf(const std::string& text) {
  std::string folder = (std::filesystem::temp_directory_path() / "engine_families_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/recipe.toml";
  std::ofstream(path) << text << R"(
[data]
source = "random"
sequence_length = 8
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";
  const recipe::LoadResult result = model::Load(path);
  std::filesystem::remove_all(folder);
  std::string mistakes;
  for (const Diagnostic& diagnostic : result.diagnostics) mistakes += Format(diagnostic);
  INFO(text);
  INFO(mistakes);
  REQUIRE(result.ok());
  return result.recipe;
}

std::string RefusalOf(const json& config) {
  const absl::StatusOr<ImportedModel> model = ImportConfig(config, "config.json");
  REQUIRE_FALSE(model.ok());
  CHECK(model.status().code() == absl::StatusCode::kInvalidArgument);
  return Message(model.status());
}

bool Contains(const std::string& text, const std::string& part) {
  INFO(text);
  INFO(part);
  return text.find(part) != std::string::npos;
}

// Every parameter of the model has a row, so that its weights are found.
void CheckRows(const ImportedModel& model, const graph::Graph& graph) {
  for (const graph::Parameter& parameter : graph.parameters()) {
    std::string name = graph.value(parameter.value).name;
    if (const std::size_t at = name.find(".0."); at != std::string::npos) name.replace(at, 3, ".{l}.");
    bool found = name.find_first_of("123456789") != std::string::npos && name.starts_with("layers.");
    for (const WeightRow& row : model.rows) found = found || row.ours == name;
    INFO(name);
    CHECK(found);
  }
}

}  // namespace

TEST_CASE("families: configurations of releases come to models with the published numbers of parameters") {
  for (const Published& published : PublishedModels()) {
    CAPTURE(published.name);
    const ImportedModel model = Imported(published.config);
    const recipe::Recipe recipe = RecipeOf(model.recipe);
    const graph::Graph graph = GraphOfRecipe(recipe);
    CHECK(model::CountParameters(graph) == published.parameters);
    CHECK(model.sizes.hidden == published.config["hidden_size"]);
    CHECK(model.sizes.vocab == published.config["vocab_size"]);
    CheckRows(model, graph);
  }
}

TEST_CASE("families: what was imported is exported as the file had it, to the last key") {
  for (const Published& published : PublishedModels()) {
    CAPTURE(published.name);
    const recipe::Recipe recipe = RecipeOf(Imported(published.config).recipe);
    const auto exported = ExportConfig(recipe, &published.config, "");
    INFO(Message(exported.status()));
    REQUIRE(exported.ok());
    CHECK(exported->config == published.config);
    CHECK(ConfigText(exported->config) == published.config.dump(2) + "\n");
  }
}

TEST_CASE(
    "families: without a source the graph says the configuration, and it comes to the same model again") {
  for (const Published& published : PublishedModels()) {
    CAPTURE(published.name);
    const recipe::Recipe recipe = RecipeOf(Imported(published.config).recipe);
    const auto exported = ExportConfig(recipe, nullptr, "");
    INFO(Message(exported.status()));
    REQUIRE(exported.ok());
    INFO(exported->config.dump(2));
    const recipe::Recipe again = RecipeOf(Imported(exported->config).recipe);
    CHECK(Differences(GraphOfRecipe(recipe), GraphOfRecipe(again), "it").empty());
    CHECK(exported->config["model_type"] == published.config["model_type"]);
    for (const char* key :
         {"vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta"}) {
      if (published.config.contains(key)) CHECK(exported->config[key] == published.config[key]);
    }
  }
}

TEST_CASE("families: keys that ask for what is not supported are named all at once, with their values") {
  const std::string text = RefusalOf(With(
      Llama2(),
      R"({"mup_scale": 12.0, "logits_scaling": 8, "hidden_act": "softsign", "hidden_size": "4096", "rms_norm_eps": -1,
          "architectures": ["LlamaForSequenceClassification"], "rope_scaling": {"type": "mystery", "factor": 2}})"));
  CHECK(text.starts_with("config.json: error: 7 keys of a model of type llama cannot be imported:\n"));
  for (const char* part : {
           "mup_scale = 12.0: what it asks for is not known of llama",
           "logits_scaling = 8: what",
           "hidden_act = \"softsign\": no activation that is supported",
           "hidden_size = \"4096\": it must be a whole number from 1 to 1048576, not a string",
           "rms_norm_eps = -1: it must be a number from 0",
           "architectures = [\"LlamaForSequenceClassification\"]: only LlamaForCausalLM is supported",
           "rope_scaling.type = \"mystery\": it is none of default, linear",
       })
    CHECK(Contains(text, part));
  CHECK(Contains(RefusalOf(With(Llama2(), R"({"model_type": "lama"})")), "did you mean \"llama\"?"));
  CHECK(Contains(RefusalOf(With(Llama2(), R"({"model_type": null})")), "no \"model_type\" that is a string"));
  CHECK(Contains(RefusalOf(json::array()), "is an object, and this is a list"));
  CHECK(Contains(RefusalOf(With(Llama2(), R"({"num_key_value_heads": 5})")), "its numbers make no model"));
  CHECK(Contains(RefusalOf(With(Llama2(), R"({"quantization_config": {"quant_method": "gptq"}})")),
                 "only FP8 with a scale for each block"));
}

TEST_CASE("families: keys that have no effect on training are notes") {
  const ImportedModel model = Imported(Llama2());
  std::string notes;
  for (const std::string& note : model.notes) notes += note + "\n";
  CHECK(Contains(notes, "eos_token_id = [2,3]: of the tokenizer"));
  CHECK(Contains(notes, "use_cache = true: of generation"));
}

TEST_CASE("families: a configuration with a wrong value is one error, or a model that loads; nothing else") {
  const std::vector<json> garbage = {
      json("x"),
      json(""),
      json(-1),
      json(0),
      json(1.5),
      json(1e300),
      json(INT64_MAX),
      json(UINT64_MAX),
      json(true),
      json::array(),
      json::array({1, "a", nullptr}),
      json::object(),
      json({{"rope_type", 3}}),
      json({{"rope_type", "yarn"}, {"factor", -2}}),
      json({{"a", {{"b", {{"c", json::array()}}}}}}),
      json({{"rope_type", "longrope"}, {"short_factor", {1, -1}}, {"long_factor", "x"}})};
  std::mt19937 random(1);
  const std::vector<Published> models = PublishedModels();
  int refused = 0, imported = 0;
  for (int i = 0; i < 400; ++i) {
    json config = models[random() % models.size()].config;
    std::vector<std::string> keys;
    for (const auto& [key, value] : config.items()) keys.push_back(key);
    for (const char* more :
         {"rope_parameters", "layer_types", "head_dim", "quantization_config", "sliding_window"})
      keys.emplace_back(more);
    for (int change = 0; change <= static_cast<int>(random() % 2); ++change)
      config[keys[random() % keys.size()]] = garbage[random() % garbage.size()];
    const auto model = ImportConfig(config, "config.json");
    INFO(config.dump());
    if (model.ok()) {
      ++imported;
      CHECK(GraphOfText(model->recipe, "recipe").ok());
      continue;
    }
    ++refused;
    CHECK(model.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(Message(model.status()).starts_with("config.json: error: "));
  }
  CHECK(refused > 200);
  CHECK(imported > 20);
}

}  // namespace engine::hf

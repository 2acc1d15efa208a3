#include <doctest/doctest.h>

#include <cstdlib>
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
#include "tests/hf/family_testing.h"

namespace engine::hf {
namespace {

using family_testing::Changed;
using family_testing::CheckRowsOf;
using family_testing::ConfigOf;
using family_testing::json;
using family_testing::LinesOfAll;
using family_testing::ModelOf;
using family_testing::WholeRecipe;

// Every file has these.
json Written(const std::string& keys) {
  return Changed(
      ConfigOf(R"({"bos_token_id": 1, "eos_token_id": [2, 3], "initializer_range": 0.02, "use_cache": true,
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
  return Changed(Llama31(),
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

json Mistral() {
  return Written(R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false})");
}
json Qwen3() {
  return Changed(Qwen25(),
                 R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "sliding_window": null, "max_window_layers": 28,
    "attention_bias": false, "rope_scaling": null})");
}
json Gemma() {
  return Written(R"({"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "vocab_size": 256000,
    "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": null,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false,
    "rope_scaling": null, "pad_token_id": 0})");
}
json Gemma2() {
  return Written(R"({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 256000,
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid"})");
}
json Gemma3Small() {
  return Written(
      R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262144,
    "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": null, "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 512,
    "sliding_window_pattern": 6, "attn_logit_softcapping": null, "final_logit_softcapping": null})");
}
json Gemma3Large() {
  return ConfigOf(R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144, "eos_token_id": [1, 106],
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
}
json Phi3() {
  return Written(R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 32064,
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null,
    "sliding_window": 2047, "attention_bias": false, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "pad_token_id": 32000,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "tie_word_embeddings": false})");
}
json Olmo2() {
  return Written(R"({"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "vocab_size": 100352,
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "rope_theta": 500000, "rope_scaling": null, "attention_bias": false, "tie_word_embeddings": false})");
}
json StableLm() {
  return Written(R"({"architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "vocab_size": 100352,
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 32,
    "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096, "layer_norm_eps": 1e-5,
    "rope_theta": 10000, "partial_rotary_factor": 0.25, "use_qkv_bias": true, "hidden_dropout": 0.0,
    "tie_word_embeddings": false})");
}

struct Published {
  std::string name;  // of configs/models
  json config;
  std::int64_t parameters;
};

// Numbers of parameters as the releases have them.
std::vector<Published> PublishedModels() {
  return {
      {"llama2-7b", Llama2(), 6'738'415'616},
      {"llama3.1-8b", Llama31(), 8'030'261'248},
      {"llama3.2-1b", Llama32(), 1'235'814'400},
      {"mistral-7b", Mistral(), 7'241'732'096},
      {"mistral-nemo-12b",
       Changed(Mistral(),
               R"({"vocab_size": 131072, "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128,
         "max_position_embeddings": 131072, "rope_theta": 1000000.0, "sliding_window": null})"),
       12'247'782'400},
      {"qwen2.5-0.5b", Qwen25(), 494'032'768},
      {"qwen2.5-7b",
       Changed(Qwen25(), R"({"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
         "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
         "max_position_embeddings": 131072, "tie_word_embeddings": false})"),
       7'615'616'512},
      {"qwen3-0.6b", Qwen3(), 596'049'920},
      {"qwen3-8b",
       Changed(Qwen3(), R"({"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
         "num_attention_heads": 32, "tie_word_embeddings": false})"),
       8'190'735'360},
      {"gemma-2b", Gemma(), 2'506'172'416},
      {"gemma-7b",
       Changed(Gemma(), R"({"hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_activation": "gelu_pytorch_tanh"})"),
       8'537'680'896},
      {"gemma2-2b", Gemma2(), 2'614'341'888},
      {"gemma2-27b",
       Changed(Gemma2(), R"({"hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
         "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144})"),
       27'227'128'320},
      {"gemma3-1b", Gemma3Small(), 999'885'952},
      {"gemma3-4b", Gemma3Large(), 3'880'263'168},
      {"phi3-mini", Phi3(), 3'821'079'552},
      // Phi-4.
      {"", Changed(Phi3(), R"({"vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 17920,
         "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10, "rope_theta": 250000,
         "max_position_embeddings": 16384, "original_max_position_embeddings": 16384, "sliding_window": null})"),
       14'659'507'200},
      {"llama3.1-70b",
       Changed(Llama31(), R"({"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
         "num_attention_heads": 64})"),
       70'553'706'496},
      // Mistral 7B v0.3.
      {"", Changed(Mistral(), R"({"vocab_size": 32768, "sliding_window": null, "rope_theta": 1000000.0})"),
       7'248'023'552},
      {"gemma2-9b",
       Changed(Gemma2(), R"({"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
         "num_attention_heads": 16, "num_key_value_heads": 8})"),
       9'241'705'984},
      {"olmo2-7b", Olmo2(), 7'298'617'344},
      {"stablelm2-1.6b", StableLm(), 1'644'515'328},
  };
}

recipe::Recipe ShippedRecipe(const std::string& name) {
  return WholeRecipe("extends = \"engine:configs/models/" + name + ".toml\"\n");
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

}  // namespace

TEST_CASE("families: configurations of releases come to models with the published numbers of parameters") {
  for (const Published& published : PublishedModels()) {
    CAPTURE(published.name);
    const ImportedModel model = ModelOf(published.config);
    const recipe::Recipe recipe = WholeRecipe(model.recipe);
    const graph::Graph graph = GraphOfRecipe(recipe);
    CHECK(model::CountParameters(graph) == published.parameters);
    CheckRowsOf(model, graph);
    // What was written by hand for the same release, in short form or as text, computes the same.
    if (!published.name.empty())
      CHECK(LinesOfAll(Differences(graph, GraphOfRecipe(ShippedRecipe(published.name)), "ours")) == "");
  }
}

TEST_CASE("families: what was imported is exported as the file had it, to the last key") {
  for (const Published& published : PublishedModels()) {
    if (published.config.contains("text_config")) continue;  // it cannot be written without its tower
    CAPTURE(published.name);
    const recipe::Recipe recipe = WholeRecipe(ModelOf(published.config).recipe);
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
    const recipe::Recipe recipe = WholeRecipe(ModelOf(published.config).recipe);
    // What several families express is written as the first one's: Mistral without a window is a Llama.
    std::string family = ModelOf(published.config).family;
    if (family == "mistral" && published.config["sliding_window"].is_null()) family = "llama";
    if (family == "phi3") family = published.config["sliding_window"].is_null() ? "llama" : "mistral";
    if (family == "gemma3") family = "gemma3_text";
    const auto exported = ExportConfig(recipe, nullptr, "");
    INFO(Message(exported.status()));
    REQUIRE(exported.ok());
    INFO(exported->config.dump(2));
    CHECK(exported->family == family);
    const recipe::Recipe again = WholeRecipe(ModelOf(exported->config).recipe);
    CHECK(LinesOfAll(Differences(GraphOfRecipe(recipe), GraphOfRecipe(again), "it")) == "");
    for (const char* key :
         {"vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta"}) {
      if (published.config.contains(key)) CHECK(exported->config[key] == published.config[key]);
    }
  }
}

// Small models in which every key that a family has is another than by default.
std::vector<json> OddModels() {
  const std::string sizes =
      R"("vocab_size": 131, "hidden_size": 40, "intermediate_size": 37, "num_hidden_layers": 3,
    "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12)";
  const auto odd = [&](const json& base, const std::string& more) {
    return Changed(Changed(base, "{" + sizes + "}"), more);
  };
  return {
      odd(Llama2(), R"({"attention_bias": true, "mlp_bias": true, "hidden_act": "gelu", "rms_norm_eps": 1e-3,
        "tie_word_embeddings": true, "rope_scaling": {"type": "linear", "factor": 2.0}})"),
      odd(Llama2(), R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2,
        "original_max_position_embeddings": 1024, "attention_factor": 1.5}})"),
      odd(Llama2(), R"({"rope_scaling": null, "rope_theta": null, "rope_parameters": {"rope_type": "yarn",
        "rope_theta": 5e5, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false,
        "original_max_position_embeddings": 4096}})"),
      odd(Llama2(), R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})"),
      odd(Mistral(), R"({"sliding_window": 5})"),
      odd(Qwen25(), R"({"use_sliding_window": true, "sliding_window": 6, "max_window_layers": 2})"),
      odd(Qwen25(), R"({"use_sliding_window": true, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})"),
      odd(Qwen3(), R"({"attention_bias": true, "tie_word_embeddings": false})"),
      odd(Gemma(), R"({"attention_bias": true, "tie_word_embeddings": false, "hidden_activation": "gelu"})"),
      odd(Gemma2(), R"({"attn_logit_softcapping": null, "final_logit_softcapping": 12.5, "sliding_window": 7,
        "query_pre_attn_scalar": 13.5})"),
      odd(Gemma2(),
          R"({"attn_logit_softcapping": 5.0, "final_logit_softcapping": null, "sliding_window": null,
        "tie_word_embeddings": false,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"]})"),
      odd(Gemma3Small(), R"({"sliding_window_pattern": 2, "sliding_window": 5,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"),
      odd(Gemma3Small(), R"({"rope_theta": null, "rope_local_base_freq": null,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}})"),
      odd(Phi3(),
          R"({"partial_rotary_factor": 0.84, "sliding_window": null, "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072, "rope_scaling": {"type": "longrope",
        "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0], "long_factor": [1.0, 3.0, 5.0, 7.0, 9.5]}})"),
      odd(Olmo2(), R"({"attention_bias": true, "tie_word_embeddings": true})"),
      odd(StableLm(), R"({"use_qkv_bias": false, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-3})"),
  };
}

TEST_CASE("families: odd sizes and every key another than by default go both ways") {
  for (const json& config : OddModels()) {
    INFO(config.dump());
    const ImportedModel model = ModelOf(config);
    const recipe::Recipe recipe = WholeRecipe(model.recipe);
    const graph::Graph graph = GraphOfRecipe(recipe);
    CheckRowsOf(model, graph);
    const auto kept = ExportConfig(recipe, &config, "");
    INFO(Message(kept.status()));
    REQUIRE(kept.ok());
    CHECK(kept->config == config);
    const auto derived = ExportConfig(recipe, nullptr, model.family);
    INFO(Message(derived.status()));
    REQUIRE(derived.ok());
    INFO(derived->config.dump(2));
    CHECK(LinesOfAll(Differences(graph, GraphOfRecipe(WholeRecipe(ModelOf(derived->config).recipe)), "it")) ==
          "");
  }
}

TEST_CASE("families: a key that matters makes another model") {
  struct Changes {
    json base;
    std::vector<const char*> changes;
  };
  const std::vector<const char*> common = {R"({"num_key_value_heads": 4})",
                                           R"({"vocab_size": 51})",
                                           R"({"num_hidden_layers": 1})",
                                           R"({"hidden_size": 72, "head_dim": 16})",
                                           R"({"head_dim": 8})",
                                           R"({"intermediate_size": 40})",
                                           R"({"rope_theta": 2e4})"};
  const std::vector<Changes> families = {
      {Llama2(),
       {R"({"attention_bias": true})", R"({"mlp_bias": true})", R"({"hidden_act": "gelu"})",
        R"({"tie_word_embeddings": true})", R"({"rms_norm_eps": 1e-6})",
        R"({"rope_scaling": {"type": "linear", "factor": 2.0}})"}},
      {Mistral(), {R"({"sliding_window": 12})", R"({"sliding_window": null})"}},
      {Qwen25(),
       {R"({"use_sliding_window": true, "max_window_layers": 1})", R"({"tie_word_embeddings": false})"}},
      {Qwen3(),
       {R"({"attention_bias": true})", R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})"}},
      {Gemma(), {R"({"hidden_activation": "relu"})", R"({"tie_word_embeddings": false})"}},
      {Gemma2(),
       {R"({"query_pre_attn_scalar": 144})", R"({"attn_logit_softcapping": 49})",
        R"({"final_logit_softcapping": 29})", R"({"sliding_window": 12})",
        R"({"layer_types": ["full_attention", "full_attention"]})"}},
      {Changed(Gemma3Small(), R"({"sliding_window_pattern": 2})"),
       {R"({"query_pre_attn_scalar": 144})", R"({"rope_local_base_freq": 2e4})",
        R"({"sliding_window_pattern": 1})", R"({"rope_scaling": {"rope_type": "linear", "factor": 8.0}})",
        R"({"sliding_window": 12})"}},
      {Phi3(), {R"({"sliding_window": 12})", R"({"partial_rotary_factor": 0.5})"}},
      {Olmo2(), {R"({"attention_bias": true})", R"({"rms_norm_eps": 1e-5})"}},
      {StableLm(),
       {R"({"use_qkv_bias": false})", R"({"partial_rotary_factor": 0.5})", R"({"layer_norm_eps": 1e-6})"}},
  };
  for (const Changes& family : families) {
    const json base =
        Changed(family.base, R"({"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 50})");
    const graph::Graph graph = GraphOfRecipe(WholeRecipe(ModelOf(base).recipe));
    std::vector<const char*> changes = common;
    changes.insert(changes.end(), family.changes.begin(), family.changes.end());
    for (const char* change : changes) {
      INFO(base["model_type"]);
      INFO(change);
      const graph::Graph other = GraphOfRecipe(WholeRecipe(ModelOf(Changed(base, change)).recipe));
      CHECK_FALSE(Differences(graph, other, "it").empty());
      CHECK_FALSE(Differences(other, graph, "it").empty());
    }
  }
}

TEST_CASE("families: every norm has the epsilon that the file says") {
  for (json config : OddModels()) {
    const bool layer_norms = config.contains("layer_norm_eps");
    config[layer_norms ? "layer_norm_eps" : "rms_norm_eps"] = 3e-4;
    const graph::Graph graph = GraphOfRecipe(WholeRecipe(ModelOf(config).recipe));
    int norms = 0;
    for (const graph::Node& node : graph.nodes()) {
      if (!node.attributes.Has("epsilon")) continue;
      INFO(node.name);
      CHECK(node.attributes.Float("epsilon") == 3e-4);
      ++norms;
    }
    CHECK(norms >= 7);
  }
}

TEST_CASE("families: a longrope model goes back to its source whichever of the two lists it was trained by") {
  for (const json& config : OddModels()) {
    if (config.value("rope_scaling", json()).is_null() || config["model_type"] != "phi3") continue;
    std::string text = ModelOf(config).recipe;
    const std::string by = "factors = [1.0, 1.5, 2.0, 2.5, 3.0]";
    REQUIRE(text.find(by) != std::string::npos);
    text.replace(text.find(by), by.size(), "factors = [1.0, 3.0, 5.0, 7.0, 9.5]");
    const auto exported = ExportConfig(WholeRecipe(text), &config, "");
    INFO(Message(exported.status()));
    REQUIRE(exported.ok());
    CHECK(exported->config == config);
    text.replace(text.find("9.5"), 3, "9.0");
    const auto other = ExportConfig(WholeRecipe(text), &config, "phi3");
    REQUIRE(other.ok());
    CHECK(other->config["rope_scaling"]["long_factor"][4] == 9.0);
    return;
  }
  FAIL("there is no such model");
}

TEST_CASE("families: a model that was changed keeps the keys of its source that still hold") {
  const json source = Changed(Llama31(), R"({"num_hidden_layers": 4, "vocab_size": 100})");
  const recipe::Recipe recipe = WholeRecipe(ModelOf(source).recipe + R"(
[[model.replace]]
step = "embedding.tokens"
with = { do = "embedding", as = "embedding.tokens", of = "tokens", rows = 120, width = "D" }
[[model.replace]]
step = "head"
with = { do = "linear", as = "head", out = [120] }
)");
  const auto exported = ExportConfig(recipe, &source, "");
  INFO(Message(exported.status()));
  REQUIRE(exported.ok());
  CHECK(exported->config == Changed(source, R"({"vocab_size": 120})"));
}

TEST_CASE("families: a recipe in short form is the family's whose graph it has") {
  const std::string text = R"(
[model]
layers = 2
hidden = 64
vocab = 100
max_positions = 512
attention = { heads = 4, kv_heads = 2, position = "rotary", rope_base = 5e5, bias = true }
mlp = { hidden = 48, activation = "swiglu", bias = true }
norm = { kind = "rmsnorm", epsilon = 1e-6 }
tied_embeddings = true
dropout = { hidden = 0.1, attention = 0.1, embedding = 0.1 }
)";
  const auto exported = ExportConfig(WholeRecipe(text), nullptr, "");
  INFO(Message(exported.status()));
  REQUIRE(exported.ok());
  CHECK(exported->family == "llama");
  CHECK(exported->config["attention_bias"] == true);
  CHECK(exported->config["mlp_bias"] == true);
  CHECK(exported->config["max_position_embeddings"] == 512);
  CHECK(exported->config["tie_word_embeddings"] == true);
}

TEST_CASE("families: that the installation's files are missing is no difference of the model") {
  const std::string model = ModelOf(Changed(Llama2(), R"({"num_hidden_layers": 2})")).recipe;
  const recipe::Recipe recipe = WholeRecipe(model);
  setenv("ENGINE_DATA", "/nowhere", 1);
  const auto exported = ExportConfig(recipe, nullptr, "llama");
  unsetenv("ENGINE_DATA");
  REQUIRE_FALSE(exported.ok());
  CHECK(Message(exported.status()) ==
        "files that come with the program are missing, by which it knows the families: "
        "'engine:configs/blocks/llama.toml' is not in '/nowhere' (ENGINE_DATA=FOLDER names another)");
}

TEST_CASE("families: a recipe that no family expresses is refused with what differs") {
  const std::string model = ModelOf(Changed(Llama2(), R"({"num_hidden_layers": 2})")).recipe;
  const auto refusal = [&](const std::string& more, const std::string& family) {
    const auto exported = ExportConfig(WholeRecipe(model + more), nullptr, family);
    REQUIRE_FALSE(exported.ok());
    CHECK(exported.status().code() == absl::StatusCode::kFailedPrecondition);
    return Message(exported.status());
  };
  const std::string gate = refusal(
      "[[model.after]]\nblock = \"attention\"\nstep = \"proj\"\nwith = [{ do = \"scale\", as = "
      "\"half\", by = 0.5 }]\n[[model.replace]]\nblock = \"attention\"\nstep = "
      "\"residual\"\nwith = { do = \"residual\", as = \"residual\", of = [\"x\", \"half\"], to "
      "= \"x\" }\n",
      "");
  CHECK(Contains(gate, "no family expresses this model exactly; from llama, the nearest, it differs:"));
  CHECK(Contains(gate, "step layers.{l}.attention.half (scale) is none that llama has"));
  const std::string window = refusal(
      "[[model.replace]]\nblock = \"attention\"\nstep = \"core\"\nwith = { do = \"attention\", "
      "as = \"core\", of = [\"q\", \"k\", \"v\"], window = 9 }\n",
      "llama");
  CHECK(Contains(window, "the family llama does not express this model exactly:"));
  CHECK(Contains(window, "step layers.{l}.attention.core has window = 9, and llama has 0"));
  const std::string norm = refusal(
      "[[model.replace]]\nblock = \"mlp\"\nstep = \"norm\"\nwith = { do = \"rms_norm\", as = "
      "\"norm\", of = \"x\", epsilon = 1e-2 }\n",
      "llama");
  CHECK(Contains(norm, "step layers.{l}.mlp.norm has epsilon = 0.01, and llama has 1e-05"));
  const std::string heads = refusal(
      "[[model.after]]\nstep = \"loss\"\nwith = [{ do = \"linear\", as = \"far\", of = \"final_norm\", "
      "out = [\"V\"] }, { do = \"cross_entropy\", as = \"far_loss\" }]\n",
      "llama");
  CHECK(Contains(heads, "parameter far.weight has no part in the logits"));
  CHECK(ExportConfig(WholeRecipe(model), nullptr, "lama").status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("families: keys that ask for what is not supported are named all at once, with their values") {
  const std::string text = RefusalOf(Changed(
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
  CHECK(Contains(RefusalOf(Changed(Llama2(), R"({"model_type": "lama"})")), "did you mean \"llama\"?"));
  CHECK(Contains(RefusalOf(Changed(Llama2(), R"({"model_type": null})")),
                 "no \"model_type\" that is a string"));
  CHECK(Contains(RefusalOf(json::array()), "is an object, and this is a list"));
  CHECK(Contains(RefusalOf(Changed(Llama2(), R"({"num_key_value_heads": 5})")), "its numbers make no model"));
  CHECK(Contains(RefusalOf(Changed(Llama2(), R"({"partial_rotary_factor": 0.5})")), "rotates whole heads"));
  CHECK(Contains(RefusalOf(Changed(Llama2(), R"({"rope_scaling": {"type": "linear", "factor": 2.0},
                                              "rope_parameters": {"rope_theta": 1e4}})")),
                 "there is rope_scaling too"));
  CHECK(Contains(RefusalOf(Changed(Mistral(), R"({"mlp_bias": true})")),
                 "mlp_bias = true: only false is supported"));
  CHECK(Contains(RefusalOf(Changed(Gemma3Small(), R"({"final_logit_softcapping": 30.0})")),
                 "final_logit_softcapping = 30.0: only null is supported"));
  CHECK(Contains(RefusalOf(Changed(Gemma3Large(), R"({"text_config": 3})")), "in an object \"text_config\""));
  CHECK(Contains(
      RefusalOf(Changed(Gemma3Large(), R"({"text_config": {"mystery": 1, "hidden_size": "x"}, "odd": 2})")),
      "text_config.mystery = 1: what it asks for is not known of gemma3"));
  CHECK(Contains(RefusalOf(Changed(StableLm(), R"({"qk_layernorm": true, "use_parallel_residual": true})")),
                 "error: 2 keys of a model of type stablelm"));
  CHECK(Contains(Message(ParseJson("{\"rms_norm_eps\": NaN}", "config.json").status()),
                 "config.json:1:18: error: "));
  // At the bounds of all sizes it is a model, which no machine holds, or an error.
  const auto huge = ImportConfig(Changed(Llama2(), R"({"hidden_size": 1048576, "intermediate_size": 1048576,
    "num_hidden_layers": 2000, "num_attention_heads": 65536, "num_key_value_heads": 65536, "head_dim": 1048576,
    "vocab_size": 268435456})"),
                                 "config.json");
  CHECK((huge.ok() || huge.status().code() == absl::StatusCode::kInvalidArgument));
  CHECK(Contains(RefusalOf(Changed(Llama2(), R"({"quantization_config": {"quant_method": "gptq"}})")),
                 "only FP8 with a scale for each block"));
}

TEST_CASE("families: keys that have no effect on training are notes") {
  const ImportedModel model = ModelOf(Llama2());
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

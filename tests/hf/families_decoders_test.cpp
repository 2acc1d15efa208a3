// GPT-2, GPT-NeoX and Pythia, GPT-J, OPT and Falcon: the keys of their files, both ways.
#include "tests/hf/family_testing.h"

namespace engine::hf {
namespace {

using family_testing::Changed;
using family_testing::CheckMatters;
using family_testing::CheckRefused;
using family_testing::CheckRelease;
using family_testing::ConfigOf;
using family_testing::GraphOf;
using family_testing::json;
using family_testing::ModelOf;

json Gpt2Config() {
  return ConfigOf(
      R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
}
json PythiaConfig() {
  return ConfigOf(R"({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
    "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12,
    "num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
    "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": true, "use_parallel_residual": true,
    "vocab_size": 50304})");
}
json GptJConfig() {
  return ConfigOf(
      R"({"activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0,
    "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256, "gradient_checkpointing": false,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gptj", "n_embd": 4096, "n_head": 16,
    "n_inner": null, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": true, "rotary_dim": 64,
    "scale_attn_weights": true, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "tie_word_embeddings": false, "tokenizer_class": "GPT2Tokenizer", "use_cache": true, "vocab_size": 50400})");
}
json OptConfig() {
  return ConfigOf(
      R"({"activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": true, "dropout": 0.1, "eos_token_id": 2,
    "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
    "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>",
    "torch_dtype": "float16", "transformers_version": "4.21.0", "use_cache": true, "vocab_size": 50272,
    "word_embed_proj_dim": 768, "_remove_final_layer_norm": false})");
}
json FalconConfig() {
  return ConfigOf(R"({"alibi": false, "apply_residual_connection_post_layernorm": false,
    "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": false, "bos_token_id": 11,
    "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": true, "new_decoder_architecture": false,
    "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "parallel_attn": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.27.4", "use_cache": true, "vocab_size": 65024})");
}
json Falcon40() {
  return Changed(FalconConfig(), R"({"hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8, "new_decoder_architecture": true})");
}
// Models that are quick to build.
json Small(const json& config) {
  if (config.contains("n_embd"))
    return Changed(
        config,
        R"({"n_embd": 40, "n_head": 5, "n_layer": 2, "n_inner": 37, "vocab_size": 131, "n_positions": 29})");
  return Changed(config,
                 R"({"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 2, "vocab_size": 131,
    "max_position_embeddings": 29})");
}

}  // namespace

TEST_CASE(
    "families: GPT-2, GPT-NeoX, GPT-J, OPT and Falcon come to the published numbers of parameters, and "
    "back") {
  CheckRelease({"gpt2-124m", Gpt2Config(), 124'439'808});
  CheckRelease(
      {"gpt2-xl", Changed(Gpt2Config(), R"({"n_embd": 1600, "n_head": 25, "n_layer": 48})"), 1'557'611'200});
  CheckRelease({"pythia-160m", PythiaConfig(), 162'322'944});
  CheckRelease({"pythia-12b", Changed(PythiaConfig(), R"({"hidden_size": 5120, "intermediate_size": 20480,
    "num_attention_heads": 40, "num_hidden_layers": 36, "vocab_size": 50688})"),
                11'846'072'320});
  CheckRelease({"gpt-j-6b", GptJConfig(), 6'050'882'784});
  CheckRelease({"opt-125m", OptConfig(), 125'239'296});
  CheckRelease({"opt-1.3b",
                Changed(OptConfig(), R"({"ffn_dim": 8192, "hidden_size": 2048, "num_attention_heads": 32,
    "num_hidden_layers": 24, "word_embed_proj_dim": 2048})"),
                1'315'758'080});
  CheckRelease({"falcon-7b", FalconConfig(), 6'921'720'704});
  // Falcon 40B, with its tied table: 41,303,293,952; Falcon 2 11B, whose head is of its own.
  CheckRelease({"", Falcon40(), 41'303'293'952});
  CheckRelease(
      {"", Changed(Falcon40(), R"({"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 60,
    "num_kv_heads": 8, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": false, "rope_theta": 500042.0,
    "max_position_embeddings": 8192})"),
       11'102'822'400});
}

TEST_CASE("families: keys of GPT-2, GPT-NeoX, GPT-J, OPT and Falcon that matter make other models") {
  for (const json& base : {Small(Gpt2Config()), Changed(Small(GptJConfig()), R"({"rotary_dim": 4})")}) {
    for (const char* change :
         {R"({"n_embd": 60})", R"({"n_head": 4})", R"({"n_layer": 3})", R"({"n_inner": null})",
          R"({"vocab_size": 120})", R"({"activation_function": "relu"})", R"({"layer_norm_epsilon": 1e-6})"})
      CheckMatters(base, change);
  }
  CheckMatters(Small(Gpt2Config()), R"({"n_positions": 30})");
  CheckMatters(Small(Gpt2Config()), R"({"tie_word_embeddings": false})");
  CheckMatters(Changed(Small(GptJConfig()), R"({"rotary_dim": 4})"), R"({"rotary_dim": 6})");
  CheckMatters(Changed(Small(GptJConfig()), R"({"rotary_dim": 4})"), R"({"rotary_dim": null})");
  for (const json& base : {Changed(Small(PythiaConfig()), R"({"rotary_pct": 0.5})"), Small(FalconConfig())}) {
    for (const char* change : {R"({"hidden_size": 60})", R"({"num_attention_heads": 2})",
                               R"({"num_hidden_layers": 3})", R"({"vocab_size": 120})"})
      CheckMatters(base, change);
  }
  for (const char* change :
       {R"({"intermediate_size": 37})", R"({"hidden_act": "gelu_fast"})", R"({"layer_norm_eps": 1e-6})",
        R"({"rotary_pct": 0.25})", R"({"rotary_emb_base": 20000})", R"({"use_parallel_residual": false})",
        R"({"attention_bias": false})", R"({"tie_word_embeddings": true})",
        R"({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}})"})
    CheckMatters(Changed(Small(PythiaConfig()), R"({"rotary_pct": 0.5})"), change);
  const json opt = Changed(Small(OptConfig()), R"({"word_embed_proj_dim": 40})");
  for (const char* change : {R"({"ffn_dim": 37})", R"({"max_position_embeddings": 31})",
                             R"({"activation_function": "gelu"})", R"({"tie_word_embeddings": false})"})
    CheckMatters(opt, change);
  for (const char* change :
       {R"({"ffn_hidden_size": 37})", R"({"bias": true})", R"({"layer_norm_epsilon": 1e-6})",
        R"({"multi_query": false})", R"({"rope_theta": 5e5})", R"({"activation": "relu"})",
        R"({"tie_word_embeddings": false})", R"({"new_decoder_architecture": true, "num_kv_heads": 1})"})
    CheckMatters(Small(FalconConfig()), change);
  CheckMatters(Changed(Small(FalconConfig()), R"({"new_decoder_architecture": true, "num_kv_heads": 1})"),
               R"({"num_ln_in_parallel_attn": 1})");
}

TEST_CASE("families: forms of GPT-NeoX and Falcon that files rarely have go both ways") {
  const json serial =
      Changed(Small(PythiaConfig()), R"({"use_parallel_residual": false, "rotary_pct": 0.5})");
  const json biased =
      Changed(Small(FalconConfig()), R"({"bias": true, "multi_query": false, "num_kv_heads": null})");
  const json grouped =
      Changed(Small(FalconConfig()), R"({"hidden_size": 36, "num_attention_heads": 6, "num_kv_heads": 2,
    "new_decoder_architecture": true, "bias": true, "layer_norm_epsilon": 3e-5})");
  for (const json& config :
       {serial, biased, grouped, Changed(grouped, R"({"num_ln_in_parallel_attn": 1})"),
        Changed(Small(PythiaConfig()), R"({"rope_theta": 10000, "partial_rotary_factor": 0.25,
                               "rotary_pct": 0.25, "hidden_size": 80})"),
        Changed(Small(Gpt2Config()), R"({"tie_word_embeddings": false})")}) {
    const graph::Graph graph = GraphOf(config);
    CheckRelease({"", config, model::CountParameters(graph)});
    for (const graph::Node& node : graph.nodes()) {
      if (config.contains("layer_norm_epsilon") && node.attributes.Has("epsilon"))
        CHECK(node.attributes.Float("epsilon") == config["layer_norm_epsilon"]);
    }
  }
  // Names that older files have.
  json old =
      Changed(Small(FalconConfig()), R"({"model_type": "RefinedWebModel", "architectures": ["RWForCausalLM"],
    "n_head": 5, "n_layer": 2})");
  for (const char* key : {"num_attention_heads", "num_hidden_layers", "num_kv_heads"}) old.erase(key);
  CHECK(Differences(GraphOf(old), GraphOf(Small(FalconConfig())), "the newer").empty());
}

TEST_CASE("families: keys that only some releases have change nothing") {
  const std::vector<std::pair<json, std::string>> files = {
      {Gpt2Config(), R"({"n_special": 0, "predict_special_tokens": true, "output_past": true})"},
      {PythiaConfig(), R"({"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0})"},
      {Falcon40(), R"({"ff_factor": 4, "ffn_hidden_size": 32768, "activation": "gelu"})"}};
  for (const auto& [config, more] : files)
    CHECK(ModelOf(Changed(config, more)).recipe == ModelOf(config).recipe);
}

TEST_CASE(
    "families: what GPT-2, GPT-NeoX, GPT-J, OPT and Falcon ask for and is not there is refused by its key") {
  CheckRefused(
      Changed(Gpt2Config(), R"({"scale_attn_by_inverse_layer_idx": true})"),
      "scale_attn_by_inverse_layer_idx = true: only false is supported: all layers' scores have one scale");
  CheckRefused(Changed(Gpt2Config(), R"({"scale_attn_weights": false})"),
               "scale_attn_weights = false: only true");
  CheckRefused(Changed(Gpt2Config(), R"({"n_head": 7})"), "n_embd = 768: it is no multiple of n_head = 7");
  CheckRefused(Changed(Gpt2Config(), R"({"add_cross_attention": true})"), "add_cross_attention = true");
  CheckRefused(Changed(PythiaConfig(), R"({"rope_theta": 20000})"),
               "rope_theta = 20000: this family's key is rotary_emb_base, and it says something else");
  CheckRefused(Changed(PythiaConfig(), R"({"rotary_pct": 0.01})"),
               "of a head's 64 features would be rotated");
  CheckRefused(Changed(GptJConfig(), R"({"rotary_dim": 512})"), "its numbers make no model");
  CheckRefused(Changed(OptConfig(), R"({"do_layer_norm_before": false})"),
               "do_layer_norm_before = false: only true is supported: norms stand before the branches");
  CheckRefused(Changed(OptConfig(), R"({"word_embed_proj_dim": 512})"),
               "word_embed_proj_dim = 512: only hidden_size, 768, is supported");
  CheckRefused(Changed(OptConfig(), R"({"enable_bias": false})"), "enable_bias = false");
  CheckRefused(Changed(FalconConfig(), R"({"alibi": true})"), "alibi = true: only false is supported");
  CheckRefused(Changed(FalconConfig(), R"({"parallel_attn": false})"),
               "parallel_attn = false: only true is supported");
  CheckRefused(Changed(Falcon40(), R"({"n_head_kv": 4})"),
               "n_head_kv = 4: it is another name of num_kv_heads");
}

TEST_CASE(
    "families: a wrong value of GPT-2, GPT-NeoX, GPT-J, OPT and Falcon is one error, or a model that loads") {
  for (const json& config :
       {Small(Gpt2Config()), Small(PythiaConfig()), Changed(Small(GptJConfig()), R"({"rotary_dim": 4})"),
        Changed(Small(OptConfig()), R"({"word_embed_proj_dim": 40})"), Small(FalconConfig())})
    family_testing::CheckWrongValues(
        config, {"rope_parameters", "rope_scaling", "rope_theta", "n_head_kv", "quantization_config"});
}

TEST_CASE("families: a folder's names say which of a family's forms it has") {
  const ImportedModel model = ModelOf(Small(Gpt2Config()));
  const auto named = [&](const std::vector<std::string>& names, const std::string& ours) {
    for (const WeightRow& row : RowsFor(model, names)) {
      if (row.ours == ours) return row.theirs[0];
    }
    return std::string("none");
  };
  const std::string qkv = "layers.{l}.attention.qkv.weight";
  CHECK(named({"transformer.h.0.attn.c_attn.weight"}, qkv) == "transformer.h.{l}.attn.c_attn.weight");
  CHECK(named({"h.11.attn.c_attn.weight"}, qkv) == "h.{l}.attn.c_attn.weight");
  CHECK(named({"h.x.attn.c_attn.weight", "h..attn.c_attn.weight", "h.1.attn.c_attn.weights"}, qkv) ==
        "transformer.h.{l}.attn.c_attn.weight");
  CHECK(named({"wte.weight"}, "embedding.tokens") == "wte.weight");
}

}  // namespace engine::hf

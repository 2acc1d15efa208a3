// Mixtral, OLMoE, Qwen and DeepSeek with experts: the keys of their files, both ways.
#include <set>

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
using family_testing::LinesOfAll;
using family_testing::ModelOf;

json Common(const std::string& keys) {
  return Changed(
      ConfigOf(R"({"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "initializer_range": 0.02, "torch_dtype": "bfloat16", "transformers_version": "4.40.0", "use_cache": true,
    "tie_word_embeddings": false})"),
      keys);
}

json MixtralConfig() {
  return Common(R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
    "vocab_size": 32000})");
}
json OlmoeConfig() {
  return Common(R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "attention_bias": false,
    "clip_qkv": null, "hidden_size": 2048, "intermediate_size": 1024, "max_position_embeddings": 4096,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": false, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "vocab_size": 50304})");
}
json Qwen2MoeConfig() {
  return Common(
      R"({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "decoder_sparse_step": 1,
    "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
    "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "output_router_logits": false,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "use_sliding_window": false,
    "vocab_size": 151936})");
}
json Qwen3MoeConfig() {
  return Common(
      R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false,
    "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "use_sliding_window": false, "vocab_size": 151936})");
}
json V2LiteConfig() {
  return Common(
      R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "attention_bias": false,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}, "aux_loss_alpha": 0.001, "ep_size": 1,
    "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
      "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true, "topk_group": 1,
    "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400})");
}
json V3Config() {
  return Common(
      R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.0001, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
      "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
      "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true, "topk_group": 4,
    "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})");
}
json SmallLatent(const json& config) {
  return Changed(config, R"({"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5,
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "kv_lora_rank": 10, "moe_intermediate_size": 11,
    "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8, "v_head_dim": 7, "vocab_size": 131, "intermediate_size": 37})");
}

json SmallMoe(const json& config) {
  json small = Changed(config, R"({"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 4,
    "num_key_value_heads": 5, "head_dim": 8, "vocab_size": 131, "intermediate_size": 37, "num_experts_per_tok": 2})");
  small[small.contains("num_experts") ? "num_experts" : "num_local_experts"] = 7;
  if (small.contains("moe_intermediate_size")) small["moe_intermediate_size"] = 11;
  if (small.contains("shared_expert_intermediate_size")) small["shared_expert_intermediate_size"] = 23;
  return small;
}

// Of a model's routers: the weight of their losses.
std::set<double> LossWeights(const graph::Graph& graph) {
  std::set<double> weights;
  for (const graph::Metric& metric : graph.metrics()) {
    if (metric.name.ends_with("router.balance")) weights.insert(metric.weight);
  }
  return weights;
}

void CheckBothWays(const json& config) {
  CheckRelease({"", config, model::CountParameters(GraphOf(config))});
}

}  // namespace

TEST_CASE(
    "families: Mixtral, OLMoE and Qwen with experts come to the published numbers of parameters, and back") {
  CheckRelease({"mixtral-8x7b", MixtralConfig(), 46'702'792'704});
  CheckRelease({"mixtral-8x22b", Changed(MixtralConfig(), R"({"hidden_size": 6144, "intermediate_size": 16384,
    "num_attention_heads": 48, "num_hidden_layers": 56, "max_position_embeddings": 65536})"),
                140'620'634'112});
  CheckRelease({"olmoe-1b-7b", OlmoeConfig(), 6'919'161'856});
  CheckRelease({"qwen1.5-moe-a2.7b", Qwen2MoeConfig(), 14'315'784'192});
  CheckRelease({"qwen3-30b-a3b", Qwen3MoeConfig(), 30'532'122'624});
}

TEST_CASE("families: keys of Mixtral, OLMoE and Qwen with experts that matter make other models") {
  for (const json& config : {MixtralConfig(), OlmoeConfig(), Qwen2MoeConfig(), Qwen3MoeConfig()}) {
    const json base = SmallMoe(config);
    CheckBothWays(base);
    for (const char* change :
         {R"({"num_experts_per_tok": 3})", R"({"hidden_act": "gelu"})", R"({"rms_norm_eps": 3e-4})",
          R"({"rope_theta": 20000.0})", R"({"num_key_value_heads": 1})", R"({"num_hidden_layers": 3})",
          R"({"tie_word_embeddings": true})"})
      CheckMatters(base, change);
    CheckMatters(base,
                 base.contains("num_experts") ? R"({"num_experts": 6})" : R"({"num_local_experts": 6})");
    CheckMatters(base, base.contains("moe_intermediate_size") ? R"({"moe_intermediate_size": 12})"
                                                              : R"({"intermediate_size": 12})");
    const graph::Graph graph = GraphOf(Changed(base, R"({"rms_norm_eps": 3e-4})"));
    for (const graph::Node& node : graph.nodes()) {
      INFO(node.name);
      if (node.attributes.Has("epsilon")) CHECK(node.attributes.Float("epsilon") == 3e-4);
    }
    CHECK(LossWeights(GraphOf(Changed(base, R"({"router_aux_loss_coef": 0.125})"))) ==
          std::set<double>{0.125});
    if (base.contains("norm_topk_prob")) {
      CheckMatters(base, base["norm_topk_prob"].get<bool>() ? R"({"norm_topk_prob": false})"
                                                            : R"({"norm_topk_prob": true})");
      json without = base;
      without.erase("norm_topk_prob");
      CHECK(Differences(GraphOf(without), GraphOf(Changed(base, R"({"norm_topk_prob": false})")), "the other")
                .empty());
    }
  }
  for (const json& config : {OlmoeConfig(), Qwen3MoeConfig()})
    CheckMatters(SmallMoe(config), R"({"attention_bias": true})");
  CheckMatters(SmallMoe(Qwen2MoeConfig()), R"({"qkv_bias": false})");
  CheckMatters(SmallMoe(Qwen2MoeConfig()), R"({"shared_expert_intermediate_size": 24})");
  CheckMatters(SmallMoe(Qwen2MoeConfig()),
               R"({"use_sliding_window": true, "max_window_layers": 1, "sliding_window": 3})");
  CheckMatters(SmallMoe(MixtralConfig()), R"({"sliding_window": 3})");
}

TEST_CASE("families: Qwen's layers without experts stand where its keys say") {
  for (const json& config : {Qwen2MoeConfig(), Qwen3MoeConfig()}) {
    const json base = SmallMoe(config);
    const auto experts = [&](const json& changed) {
      const graph::Graph graph = GraphOf(changed);
      const GraphView view(graph);
      std::string layers;
      for (int i = 0; i < 4; ++i)
        layers +=
            view.FindParameter("layers." + std::to_string(i) + ".mlp.router.weight") != nullptr ? 'M' : 'D';
      if (layers.find('D') != std::string::npos)
        CHECK(view.Whole(InputDim("layers." + std::to_string(layers.find('D')) + ".mlp.fc2", 0, 2)) == 37);
      return layers;
    };
    CHECK(experts(base) == "MMMM");
    CHECK(experts(Changed(base, R"({"decoder_sparse_step": 2})")) == "DMDM");
    CHECK(experts(Changed(base, R"({"decoder_sparse_step": 3})")) == "DDMD");
    CHECK(experts(Changed(base, R"({"mlp_only_layers": [0, 3]})")) == "DMMD");
    CHECK(experts(Changed(base, R"({"mlp_only_layers": [1], "decoder_sparse_step": 2})")) == "DDDM");
    for (const char* change : {R"({"decoder_sparse_step": 2})", R"({"mlp_only_layers": [1, 2]})",
                               R"({"mlp_only_layers": [0], "hidden_act": "gelu", "rms_norm_eps": 3e-4})"})
      CheckBothWays(Changed(base, change));
    CheckRefused(Changed(base, R"({"mlp_only_layers": [4]})"),
                 "mlp_only_layers = [4]: it must be a list of layers from 0 to 3");
    CheckRefused(Changed(base, R"({"mlp_only_layers": [0, 1, 2, 3]})"), "no layer has experts");
    CheckRefused(Changed(base, R"({"mlp_only_layers": [-1]})"), "it must be a list of layers");
  }
}

TEST_CASE(
    "families: what Mixtral, OLMoE and Qwen with experts ask for and is not there is refused by its key") {
  CheckRefused(Changed(OlmoeConfig(), R"({"clip_qkv": 8.0})"), "clip_qkv = 8.0: only null is supported");
  CheckRefused(Changed(MixtralConfig(), R"({"router_jitter_noise": 0.1})"), "router_jitter_noise = 0.1");
  CheckRefused(Changed(MixtralConfig(), R"({"num_experts": 4})"),
               "num_experts = 4: it is another name of num_local_experts");
  CheckRefused(Changed(MixtralConfig(), R"({"num_experts_per_tok": 9})"),
               "a token goes to 9 experts, and there are 8");
  CheckRefused(Changed(MixtralConfig(), R"({"hidden_act": "softsign"})"), "hidden_act = \"softsign\"");
}

TEST_CASE("families: DeepSeek-V2-Lite and V3 come to the published numbers of parameters, and back") {
  CheckRelease({"deepseek-v2-lite", V2LiteConfig(), 15'706'484'224});
  CheckRelease({"deepseek-v3", V3Config(), 671'026'419'200});
  const ImportedModel model = ModelOf(V3Config());
  CHECK(LinesOfAll(model.ignored) == "*.rotary_emb.inv_freq\nmodel.layers.61.*\n");
  const std::string notes = LinesOfAll(model.notes);
  CHECK(notes.find(
            "num_nextn_predict_layers = 1: the module for further tokens, model.layers.61, is not read") !=
        std::string::npos);
  CHECK(notes.find("quantization_config: weights in FP8") != std::string::npos);
}

TEST_CASE("families: keys of DeepSeek that matter make other models") {
  for (const json& config : {V2LiteConfig(), V3Config()}) {
    const json base = SmallLatent(config);
    CheckBothWays(base);
    for (const char* change :
         {R"({"hidden_size": 44})",           R"({"num_attention_heads": 4, "num_key_value_heads": 4})",
          R"({"num_hidden_layers": 4})",      R"({"first_k_dense_replace": 2})",
          R"({"first_k_dense_replace": 0})",  R"({"kv_lora_rank": 12})",
          R"({"moe_intermediate_size": 12})", R"({"n_routed_experts": 16})",
          R"({"num_experts_per_tok": 2})",    R"({"qk_nope_head_dim": 8})",
          R"({"qk_rope_head_dim": 6})",       R"({"v_head_dim": 8})",
          R"({"vocab_size": 132})",           R"({"intermediate_size": 38})",
          R"({"n_shared_experts": 3})",       R"({"routed_scaling_factor": 1.5})",
          R"({"rope_theta": 20000})",         R"({"rope_scaling": null})",
          R"({"rms_norm_eps": 3e-4})",        R"({"hidden_act": "gelu"})",
          R"({"tie_word_embeddings": true})", R"({"q_lora_rank": 14})"}) {
      CheckMatters(base, change);
      CheckBothWays(Changed(base, change));
    }
    json scaling = base["rope_scaling"];
    for (const char* change :
         {R"({"factor": 4})", R"({"mscale": 0.5})", R"({"mscale_all_dim": 0.5})", R"({"beta_fast": 4})",
          R"({"original_max_position_embeddings": 64})", R"({"mscale": 0, "mscale_all_dim": 0})"}) {
      json changed = base;
      changed["rope_scaling"] = Changed(scaling, change);
      INFO(std::string(change));
      CHECK(!Differences(GraphOf(base), GraphOf(changed), "the other").empty());
      CheckBothWays(changed);
    }
    const graph::Graph graph = GraphOf(Changed(base, R"({"rms_norm_eps": 3e-4, "q_lora_rank": 14})"));
    for (const graph::Node& node : graph.nodes()) {
      INFO(node.name);
      if (node.attributes.Has("epsilon")) CHECK(node.attributes.Float("epsilon") == 3e-4);
    }
    CHECK(LossWeights(GraphOf(Changed(base, R"({"aux_loss_alpha": 0.125})"))) == std::set<double>{0.125});
  }
  CheckMatters(SmallLatent(V3Config()), R"({"n_group": 2})");
  CheckMatters(SmallLatent(V3Config()), R"({"n_group": 1, "topk_group": 1})");
  CheckMatters(SmallLatent(V3Config()), R"({"topk_group": 3})");
  CheckMatters(SmallLatent(V3Config()), R"({"norm_topk_prob": false})");
  CheckMatters(SmallLatent(V3Config()), R"({"q_lora_rank": null})");
  CheckBothWays(Changed(SmallLatent(V3Config()), R"({"q_lora_rank": null})"));
  CheckMatters(SmallLatent(V2LiteConfig()), R"({"topk_method": "group_limited_greedy"})");
  CheckBothWays(Changed(SmallLatent(V2LiteConfig()), R"({"topk_method": "group_limited_greedy"})"));
}

TEST_CASE("families: what DeepSeek's files ask for and is not there is refused by its key") {
  CheckRefused(Changed(V3Config(), R"({"first_k_dense_replace": 61})"),
               "at least one of the 61 layers must have experts");
  CheckRefused(Changed(V3Config(), R"({"rope_interleave": false})"),
               "rope_interleave = false: only true is supported");
  CheckRefused(Changed(V3Config(), R"({"attention_bias": true})"), "attention_bias = true");
  CheckRefused(Changed(V3Config(), R"({"moe_layer_freq": 2})"), "moe_layer_freq = 2: only 1 is supported");
  CheckRefused(Changed(V3Config(), R"({"num_key_value_heads": 8})"),
               "num_key_value_heads = 8: only 128 is supported");
  CheckRefused(Changed(V3Config(), R"({"rope_scaling": {"type": "linear", "factor": 2}})"),
               "only yarn is supported");
  CheckRefused(Changed(V3Config(),
                       R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}})"),
               "quantization_config");
  CheckRefused(Changed(V3Config(), R"({"n_shared_experts": null})"), "n_shared_experts = null");
  CheckRefused(Changed(V3Config(), R"({"topk_group": 9})"), "9 of 8 groups of 32 experts are to hold");
  CheckRefused(Changed(V2LiteConfig(), R"({"topk_method": "noaux_tc"})"), "topk_method = \"noaux_tc\"");
  CheckRefused(Changed(V2LiteConfig(), R"({"norm_topk_prob": true})"),
               "norm_topk_prob = true: only false is supported");
}

TEST_CASE("families: a wrong value of a model with experts is one error, or a model that loads") {
  for (const json& config :
       {SmallMoe(MixtralConfig()), SmallMoe(OlmoeConfig()), SmallMoe(Qwen2MoeConfig()),
        SmallMoe(Qwen3MoeConfig()), SmallLatent(V2LiteConfig()), SmallLatent(V3Config())})
    family_testing::CheckWrongValues(config, {"rope_parameters", "mlp_only_layers", "num_mtp_layers",
                                              "qk_head_dim", "layer_types", "num_local_experts"});
}

TEST_CASE("families: experts are read one by one, or all in one tensor") {
  const ImportedModel model = ModelOf(SmallMoe(Qwen3MoeConfig()));
  const auto fc1 = [&](const std::string& name) {
    for (WeightRow& row : RowsFor(model, {name})) {
      if (row.ours == "layers.{l}.mlp.experts.fc1.weight") return row;
    }
    return WeightRow{};
  };
  const WeightRow each = fc1("model.layers.1.mlp.experts.12.gate_proj.weight");
  CHECK(each.theirs == std::vector<std::string>{"model.layers.{l}.mlp.experts.{e}.gate_proj.weight",
                                                "model.layers.{l}.mlp.experts.{e}.up_proj.weight"});
  CHECK(each.how == How::kStacked);
  const WeightRow together = fc1("model.layers.1.mlp.experts.gate_up_proj");
  CHECK(together.theirs == std::vector<std::string>{"model.layers.{l}.mlp.experts.gate_up_proj"});
  CHECK(together.how == How::kAllExperts);
}

}  // namespace engine::hf

// Qwen1.5-MoE and Qwen2 with experts (arXiv 2407.10671), and Qwen3 with experts (arXiv 2505.09388). Layers without experts stand
// where the keys say so.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

// Of layers without experts too, which have the names of Qwen's dense models.
std::vector<WeightRow> QwenExpertWeights() {
  const std::string mlp = "model.layers.{l}.mlp.";
  return Joined(LlamaWeights(), ExpertWeights(mlp + "gate", mlp + "experts"));
}

// The expert that all tokens go through, of width G.
Feature SharedExpert() {
  return {.keys = {"shared_expert_intermediate_size"},
          .read =
              [](Importing& in) {
                in.draft.SetDim("G",
                                in.keys.Whole("shared_expert_intermediate_size", 1, 1 << 20).value_or(5632));
              },
          .write =
              [](Exporting& out) {
                const std::string name = FirstExperts(out.graph) + "shared.fc2";
                const auto width = out.graph.Whole(InputDim(name, 0, 2));
                if (!width)
                  return out.problems.emplace_back("its layers have no expert that all share"), void();
                out.config["shared_expert_intermediate_size"] = *width;
              }};
}

}  // namespace

Family Qwen2MoeFamily() {
  const std::string mlp = "model.layers.{l}.mlp.";
  return {.name = "qwen2_moe",
          .model_types = {"qwen2_moe"},
          .architectures = {"Qwen2MoeForCausalLM"},
          .blocks = "engine:configs/blocks/qwen2-moe.toml",
          .keys = Joined(
              WithDefaults(WithoutKeys(LlamaSizes(), {"hidden_act", "intermediate_size"}),
                           {{"vocab_size", 151936},
                            {"hidden_size", 2048},
                            {"num_hidden_layers", 24},
                            {"num_attention_heads", 16},
                            {"num_key_value_heads", 16}}),
              {Epsilon("rms_norm_eps", 1e-6,
                       {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
               {.key = "qkv_bias",
                .is = Is::kFlag,
                .initial = true,
                .to = {"block/attention/qkv/bias"},
                .from = HasParameter("layers.0.attention.qkv.bias")},
               NoBias("attention_bias"),
               NoBias("mlp_bias")}),
          .features = {Rope({.theta = 1e4, .positions = 32768, .whole = true}), Tied(false, false),
                       Windows({.initial = 4096, .asked_for = true}),
                       Experts({.count = 60,
                                .top = 4,
                                .width = 1408,
                                .mixed = true,
                                .dense_width = 5632,
                                .act_places = {"block/mlp/experts/act", "block/mlp/shared.activation/act"}}),
                       SharedExpert(), AuxLoss("router_aux_loss_coef", 0.001)},
          .weights = Joined(
              QwenExpertWeights(),
              {{.ours = "layers.{l}.mlp.shared.fc1.weight",
                .theirs = {mlp + "shared_expert.gate_proj.weight", mlp + "shared_expert.up_proj.weight"},
                .how = How::kStacked},
               Same("layers.{l}.mlp.shared.fc2.weight", mlp + "shared_expert.down_proj.weight"),
               Same("layers.{l}.mlp.shared.gate.weight", mlp + "shared_expert_gate.weight")}),
          .ignored = {"*.rotary_emb.inv_freq"},
          .other_weights = FusedExpertWeights(mlp + "gate", mlp + "experts")};
}

Family Qwen3MoeFamily() {
  const std::string layer = "model.layers.{l}.";
  return {.name = "qwen3_moe",
          .model_types = {"qwen3_moe"},
          .architectures = {"Qwen3MoeForCausalLM"},
          .blocks = "engine:configs/blocks/qwen3-moe.toml",
          .keys = Joined(WithDefaults(WithoutKeys(LlamaSizes(), {"hidden_act", "intermediate_size"}),
                                      {{"vocab_size", 151936},
                                       {"hidden_size", 2048},
                                       {"num_hidden_layers", 24},
                                       {"num_attention_heads", 32},
                                       {"num_key_value_heads", 4}}),
                         {Epsilon("rms_norm_eps", 1e-6,
                                  {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                                   "block/attention/q_norm/epsilon", "block/attention/k_norm/epsilon",
                                   "block/mlp/norm/epsilon"}),
                          AttentionBias(), NoBias("mlp_bias")}),
          .features = {Rope({.theta = 1e4, .positions = 32768, .whole = true}), Tied(false, false),
                       Windows({.initial = 4096, .asked_for = true}),
                       Experts({.count = 128, .top = 8, .width = 768, .mixed = true, .dense_width = 6144}),
                       AuxLoss("router_aux_loss_coef", 0.001)},
          .weights = Joined(QwenExpertWeights(),
                            {Same("layers.{l}.attention.q_norm.weight", layer + "self_attn.q_norm.weight"),
                             Same("layers.{l}.attention.k_norm.weight", layer + "self_attn.k_norm.weight")}),
          .ignored = {"*.rotary_emb.inv_freq"},
          .other_weights = FusedExpertWeights(layer + "mlp.gate", layer + "mlp.experts")};
}

}  // namespace engine::hf

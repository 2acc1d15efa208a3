// OLMoE (arXiv 2409.02060): queries and keys are normalised over all heads together, so that the [H·E] gains of theirs are our
// [H, E] ones.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family OlmoeFamily() {
  const std::string layer = "model.layers.{l}.";
  return {.name = "olmoe",
          .model_types = {"olmoe"},
          .architectures = {"OlmoeForCausalLM"},
          .blocks = "engine:configs/blocks/olmoe.toml",
          .keys = Joined(
              WithDefaults(WithoutKeys(LlamaSizes(), {"hidden_act", "intermediate_size"}),
                           {{"vocab_size", 50304},
                            {"hidden_size", 2048},
                            {"num_hidden_layers", 16},
                            {"num_attention_heads", 16}}),
              {Epsilon("rms_norm_eps", 1e-5,
                       {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                        "block/attention/q_norm/epsilon", "block/attention/k_norm/epsilon",
                        "block/mlp/norm/epsilon"}),
               AttentionBias(),
               {.key = "clip_qkv", .is = Is::kFixed, .note = "queries, keys and values are not clipped"}}),
          .features = {Rope({.theta = 1e4, .positions = 4096, .whole = true}), Tied(false, false),
                       Experts({.count = 64, .top = 8, .width_key = "intermediate_size", .width = 2048}),
                       AuxLoss("router_aux_loss_coef", 0.01)},
          .weights = Joined(
              Joined(WithoutMlp(LlamaWeights()), ExpertWeights(layer + "mlp.gate", layer + "mlp.experts")),
              {Same("layers.{l}.attention.q_norm.weight", layer + "self_attn.q_norm.weight"),
               Same("layers.{l}.attention.k_norm.weight", layer + "self_attn.k_norm.weight")}),
          .ignored = {"*.rotary_emb.inv_freq"},
          .other_weights = FusedExpertWeights(layer + "mlp.gate", layer + "mlp.experts")};
}

}  // namespace engine::hf

// Mixtral (arXiv 2401.04088): Llama's steps with experts.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family MixtralFamily() {
  const std::string mlp = "model.layers.{l}.block_sparse_moe.";
  const std::string in_memory = "model.layers.{l}.mlp.";
  return {
      .name = "mixtral",
      .model_types = {"mixtral"},
      .architectures = {"MixtralForCausalLM"},
      .blocks = "engine:configs/blocks/mixtral.toml",
      .keys = Joined(
          WithDefaults(WithoutKeys(LlamaSizes(), {"hidden_act", "intermediate_size"}),
                       {{"num_key_value_heads", 8}}),
          {Epsilon("rms_norm_eps", 1e-5,
                   {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
           {.key = "router_jitter_noise",
            .is = Is::kFixed,
            .initial = 0.0,
            .note = "their noise is on what experts read too; jitter of our router is on its input alone"}}),
      .features = {Rope({.theta = 1e6, .positions = 131072, .whole = true}), Tied(false, false), Windows({}),
                   Experts({.count_keys = {"num_local_experts", "num_experts"},
                            .count = 8,
                            .top = 2,
                            .width_key = "intermediate_size",
                            .width = 14336,
                            .says_normalize = false}),
                   AuxLoss("router_aux_loss_coef", 0.001)},
      .weights =
          Joined(WithoutMlp(LlamaWeights()), ExpertWeights(mlp + "gate", mlp + "experts", "w1", "w3", "w2")),
      .ignored = {"*.rotary_emb.inv_freq"},
      .other_weights = FusedExpertWeights(in_memory + "gate", in_memory + "experts")};
}

}  // namespace engine::hf

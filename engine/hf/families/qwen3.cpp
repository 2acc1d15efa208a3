// Qwen3, dense sizes (arXiv 2505.09388): queries and keys are normalised head by head.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family Qwen3Family() {
  return {.name = "qwen3",
          .model_types = {"qwen3"},
          .architectures = {"Qwen3ForCausalLM"},
          .blocks = "engine:configs/blocks/qwen3.toml",
          .keys = Joined(WithDefaults(LlamaSizes(), {{"vocab_size", 151936},
                                                     {"intermediate_size", 22016},
                                                     {"num_key_value_heads", 32},
                                                     {"head_dim", 128}}),
                         {Epsilon("rms_norm_eps", 1e-6,
                                  {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                                   "block/attention/q_norm/epsilon", "block/attention/k_norm/epsilon",
                                   "block/mlp/norm/epsilon"}),
                          AttentionBias()}),
          .features = {Rope({.theta = 1e4, .positions = 32768, .whole = true}), Tied(false, false),
                       Windows({.initial = 4096, .asked_for = true})},
          .weights = Joined(
              LlamaWeights(),
              {Same("layers.{l}.attention.q_norm.weight", "model.layers.{l}.self_attn.q_norm.weight"),
               Same("layers.{l}.attention.k_norm.weight", "model.layers.{l}.self_attn.k_norm.weight")})};
}

}  // namespace engine::hf

// OLMo 2 (arXiv 2501.00656): norms behind the branches; queries and keys are normalised over all heads together, so that the
// [H·E] gains of theirs are our [H, E] ones.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family Olmo2Family() {
  const std::string layer = "model.layers.{l}.";
  return {.name = "olmo2",
          .model_types = {"olmo2"},
          .architectures = {"Olmo2ForCausalLM"},
          .blocks = "engine:configs/blocks/olmo2.toml",
          .keys = Joined(WithDefaults(LlamaSizes(), {{"vocab_size", 50304}}),
                         {Epsilon("rms_norm_eps", 1e-5,
                                  {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                                   "block/attention/q_norm/epsilon", "block/attention/k_norm/epsilon",
                                   "block/mlp/norm/epsilon"}),
                          AttentionBias()}),
          .features = {Rope({.theta = 1e4, .positions = 2048, .whole = true}), Tied(false, false)},
          .weights = Joined(
              Without(LlamaWeights(), {"layers.{l}.attention.norm.weight", "layers.{l}.mlp.norm.weight"}),
              {Same("layers.{l}.attention.q_norm.weight", layer + "self_attn.q_norm.weight"),
               Same("layers.{l}.attention.k_norm.weight", layer + "self_attn.k_norm.weight"),
               Same("layers.{l}.attention.norm.weight", layer + "post_attention_layernorm.weight"),
               Same("layers.{l}.mlp.norm.weight", layer + "post_feedforward_layernorm.weight")})};
}

}  // namespace engine::hf

// StableLM 3B 4E1T and StableLM 2 1.6B (arXiv 2402.17834): LayerNorm, and a part of each head rotated. The 12B release has
// parallel branches and norms of queries and keys, head by head with a gain each, which are refused.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family StableLmFamily() {
  const std::string layer = "model.layers.{l}.";
  return {.name = "stablelm",
          .model_types = {"stablelm"},
          .architectures = {"StableLmForCausalLM"},
          .blocks = "engine:configs/blocks/stablelm2.toml",
          .keys = Joined(
              WithDefaults(LlamaSizes(), {{"vocab_size", 50304},
                                          {"hidden_size", 2560},
                                          {"intermediate_size", 6912},
                                          {"num_key_value_heads", 32}}),
              {Epsilon("layer_norm_eps", 1e-5,
                       {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
               {.key = "use_qkv_bias",
                .is = Is::kFlag,
                .initial = false,
                .to = {"block/attention/qkv/bias"},
                .from = HasParameter("layers.0.attention.qkv.bias")},
               {.key = "qk_layernorm",
                .is = Is::kFixed,
                .initial = false,
                .note = "a gain for each head's queries and keys is not there"},
               {.key = "use_parallel_residual",
                .is = Is::kFixed,
                .initial = false,
                .note = "its branches stand one behind the other"},
               {.key = "hidden_dropout", .is = Is::kIgnored, .note = "the recipe has no dropout"}}),
          .features = {Rope({.theta = 1e4, .partial = 0.25, .positions = 4096, .blocks_say_width = true}),
                       Tied(false, false)},
          .weights = Joined(LlamaWeights(),
                            {Same("final_norm.bias", "model.norm.bias"),
                             Same("layers.{l}.attention.norm.bias", layer + "input_layernorm.bias"),
                             Same("layers.{l}.mlp.norm.bias", layer + "post_attention_layernorm.bias")}),
          .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

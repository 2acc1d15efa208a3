// Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): biases on queries, keys and values.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family Qwen2Family() {
  return {
      .name = "qwen2",
      .model_types = {"qwen2"},
      .architectures = {"Qwen2ForCausalLM"},
      .blocks = "engine:configs/blocks/qwen2.toml",
      .keys = Joined(
          WithDefaults(LlamaSizes(),
                       {{"vocab_size", 151936}, {"intermediate_size", 22016}, {"num_key_value_heads", 32}}),
          {Epsilon("rms_norm_eps", 1e-6,
                   {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
           NoBias("attention_bias"), NoBias("mlp_bias")}),
      .features = {Rope({.theta = 1e4, .positions = 32768, .whole = true}), Tied(false, false),
                   Windows({.initial = 4096, .asked_for = true})},
      .weights = LlamaWeights(),
      .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

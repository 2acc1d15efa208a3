// Mistral (arXiv 2310.06825) and Mistral Nemo: Llama's steps, with a window in the first release.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family MistralFamily() {
  return {.name = "mistral",
          .model_types = {"mistral"},
          .architectures = {"MistralForCausalLM"},
          .blocks = "engine:configs/blocks/llama.toml",
          .keys = Joined(
              WithDefaults(LlamaSizes(), {{"intermediate_size", 14336}, {"num_key_value_heads", 8}}),
              {Epsilon("rms_norm_eps", 1e-6,
                       {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
               NoBias("attention_bias"), NoBias("mlp_bias")}),
          .features = {Rope({.theta = 1e4, .positions = 131072, .whole = true}), Tied(false, false),
                       Windows({.initial = 4096})},
          .weights = LlamaWeights(),
          .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

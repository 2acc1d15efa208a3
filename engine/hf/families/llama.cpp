// Llama 1 to 3.3 (arXiv 2302.13971, 2307.09288, 2407.21783).
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family LlamaFamily() {
  return {.name = "llama",
          .model_types = {"llama"},
          .architectures = {"LlamaForCausalLM"},
          .blocks = "engine:configs/blocks/llama.toml",
          .keys = Joined(
              LlamaSizes(),
              {Epsilon("rms_norm_eps", 1e-6,
                       {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
               AttentionBias(),
               {.key = "is_llama_config", .is = Is::kIgnored, .note = "says what model_type says"},
               {.key = "rope_interleaved",
                .is = Is::kUnread,
                .initial = false,
                .note = "transformers rotates halves whatever the file says"},
               {.key = "mlp_bias",
                .is = Is::kFlag,
                .initial = false,
                .to = {"block/mlp/fc1/bias", "block/mlp/fc2/bias"},
                .from = HasParameter("layers.0.mlp.fc1.bias")}}),
          .features = {Rope({.theta = 1e4, .positions = 2048, .whole = true}), Tied(false, false)},
          .weights = LlamaWeights(),
          .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

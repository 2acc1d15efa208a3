// Phi-3 and Phi-4 (arXiv 2404.14219): Llama's steps; queries, keys and values are the rows of one matrix, all queries first, and
// so are gates and values of the feed-forward part.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {

Family Phi3Family() {
  constexpr std::string_view kNoDropout = "the recipe has no dropout";
  const std::string layer = "model.layers.{l}.";
  return {.name = "phi3",
          .model_types = {"phi3"},
          .architectures = {"Phi3ForCausalLM"},
          .blocks = "engine:configs/blocks/llama.toml",
          .keys = Joined(
              WithDefaults(LlamaSizes(),
                           {{"vocab_size", 32064}, {"hidden_size", 3072}, {"intermediate_size", 8192}}),
              {Epsilon("rms_norm_eps", 1e-5,
                       {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
               NoBias("attention_bias"),
               NoBias("mlp_bias"),
               NoBias("lm_head_bias"),
               {.key = "interpolate_factor", .is = Is::kUnread, .initial = 1},
               {.key = "full_attn_mod", .is = Is::kUnread, .initial = 1},
               {.key = "resid_pdrop", .is = Is::kIgnored, .note = kNoDropout},
               {.key = "embd_pdrop", .is = Is::kIgnored, .note = kNoDropout}}),
          .features = {Rope({.theta = 1e4, .positions = 4096, .long_names = true}), Tied(false, false),
                       Windows({})},
          .weights = Joined(
              Without(LlamaWeights(), {"layers.{l}.attention.qkv.weight", "layers.{l}.mlp.fc1.weight"}),
              {{.ours = "layers.{l}.attention.qkv.weight",
                .theirs = {layer + "self_attn.qkv_proj.weight"},
                .how = How::kQkvRows},
               {.ours = "layers.{l}.mlp.fc1.weight",
                .theirs = {layer + "mlp.gate_up_proj.weight"},
                .how = How::kHalves}}),
          .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

// GPT-2 (Radford et al., 2019). Its products are of the class Conv1D, whose weights are [in, out]; queries, keys and values are the
// columns of one.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

std::vector<WeightRow> Gpt2Weights(const std::string& prefix) {
  const std::string layer = prefix + "h.{l}.";
  std::vector<WeightRow> rows = {Same("embedding.tokens", prefix + "wte.weight"),
                                 Same("embedding.positions", prefix + "wpe.weight"),
                                 Same("head.weight", "lm_head.weight")};
  const auto both = [&](const std::string& ours, const std::string& theirs, How how) {
    rows.push_back({.ours = ours + ".weight", .theirs = {theirs + ".weight"}, .how = how});
    const How of_bias = how == How::kQkvColumns ? how : How::kSame;
    rows.push_back({.ours = ours + ".bias", .theirs = {theirs + ".bias"}, .how = of_bias});
  };
  both("final_norm", prefix + "ln_f", How::kSame);
  both("layers.{l}.attention.norm", layer + "ln_1", How::kSame);
  both("layers.{l}.attention.qkv", layer + "attn.c_attn", How::kQkvColumns);
  both("layers.{l}.attention.proj", layer + "attn.c_proj", How::kTransposed);
  both("layers.{l}.mlp.norm", layer + "ln_2", How::kSame);
  both("layers.{l}.mlp.fc1", layer + "mlp.c_fc", How::kTransposed);
  both("layers.{l}.mlp.fc2", layer + "mlp.c_proj", How::kTransposed);
  return rows;
}

}  // namespace

Family Gpt2Family() {
  return {
      .name = "gpt2",
      .model_types = {"gpt2"},
      .architectures = {"GPT2LMHeadModel"},
      .blocks = "engine:configs/blocks/gpt2.toml",
      .keys = Joined(
          OldSizes({.vocab = 50257, .width = 768, .layers = 12, .heads = 12, .act = "gelu_new"}),
          {Count("n_positions", 1024, "P", DimOf("embedding.positions", 0)),
           {.key = "n_ctx", .is = Is::kIgnored, .note = "an old name of n_positions, which counts"},
           {.key = "n_special", .is = Is::kUnread, .initial = 0},
           {.key = "predict_special_tokens", .is = Is::kIgnored, .note = "of the first releases' classes"},
           {.key = "output_past", .is = Is::kIgnored, .note = "of generation"},
           Epsilon("layer_norm_epsilon", 1e-5,
                   {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"}),
           {.key = "scale_attn_weights",
            .is = Is::kFixed,
            .initial = true,
            .note = "scores are divided by the root of a head's width"},
           {.key = "scale_attn_by_inverse_layer_idx",
            .is = Is::kFixed,
            .initial = false,
            .note = "all layers' scores have one scale"},
           {.key = "reorder_and_upcast_attn",
            .is = Is::kIgnored,
            .note = "of the precision of scores, which are float32"}}),
      .features = {HeadWidth("n_embd", "n_head"), Tied(true, true)},
      .weights = Gpt2Weights("transformer."),
      .ignored = {"*.attn.bias", "*.attn.masked_bias"},
      .other_weights = Gpt2Weights("")};
}

}  // namespace engine::hf

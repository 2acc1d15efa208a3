// GPT-J (Wang & Komatsuzaki, 2021). Neighbouring features are rotated in pairs, in the files as in our blocks.
#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

// rotary_dim, and how long sequences may be, which changes nothing.
Feature RotaryDim() {
  return {.keys = {"rotary_dim", "n_positions"},
          .read =
              [](Importing& in) {
                in.keys.Whole("n_positions", 1, std::int64_t{1} << 30);
                if (in.keys.IsNull("rotary_dim"))
                  return in.keys.Take("rotary_dim"), in.draft.Set("rotary/rope/width", in.Dim("E"));
                in.draft.Set("rotary/rope/width", in.keys.Whole("rotary_dim", 2, 1 << 20).value_or(64));
              },
          .write =
              [](Exporting& out) {
                out.config["n_positions"] = LongestSequence(out.recipe);
                const std::optional<Rotation> rotation = RotationOfLayer(out.graph, "layers", 0);
                if (!rotation)
                  return out.problems.emplace_back("there are no rotary positions in its first layer"),
                         void();
                out.config["rotary_dim"] = rotation->attributes->Int("width", rotation->head);
              }};
}

}  // namespace

Family GptJFamily() {
  const std::string layer = "transformer.h.{l}.";
  return {.name = "gptj",
          .model_types = {"gptj"},
          .architectures = {"GPTJForCausalLM"},
          .blocks = "engine:configs/blocks/gpt-j.toml",
          .keys = Joined(OldSizes({.vocab = 50400,
                                   .width = 4096,
                                   .layers = 28,
                                   .heads = 16,
                                   .act = "gelu_new",
                                   .act_place = "block/parallel/mlp.activation/act"}),
                         {Epsilon("layer_norm_epsilon", 1e-5,
                                  {"main/final_norm/epsilon", "block/parallel/norm/epsilon"}),
                          {.key = "rotary", .is = Is::kUnread, .initial = true},
                          {.key = "scale_attn_weights", .is = Is::kUnread, .initial = true}}),
          .features = {HeadWidth("n_embd", "n_head"), RotaryDim(), Tied(false, false)},
          .weights = Joined({Same("embedding.tokens", "transformer.wte.weight"),
                             {.ours = "layers.{l}.attention.qkv.weight",
                              .theirs = {layer + "attn.q_proj.weight", layer + "attn.k_proj.weight",
                                         layer + "attn.v_proj.weight"},
                              .how = How::kQkv},
                             Same("layers.{l}.attention.proj.weight", layer + "attn.out_proj.weight")},
                            WithBiases({{"final_norm", "transformer.ln_f"},
                                        {"head", "lm_head"},
                                        {"layers.{l}.norm", layer + "ln_1"},
                                        {"layers.{l}.mlp.fc1", layer + "mlp.fc_in"},
                                        {"layers.{l}.mlp.fc2", layer + "mlp.fc_out"}})),
          .ignored = {"*.attn.bias", "*.attn.masked_bias"}};
}

}  // namespace engine::hf

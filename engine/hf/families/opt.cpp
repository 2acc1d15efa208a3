// OPT (arXiv 2205.01068), but for the release of 350M, whose norms stand behind the branches. Position p has row p + 2 of its table.
#include <fmt/format.h>

#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

Feature OptWidths() {
  return {.keys = {"max_position_embeddings", "word_embed_proj_dim"},
          .read =
              [](Importing& in) {
                in.draft.SetDim("P", in.keys.Whole("max_position_embeddings", 1, 1 << 20).value_or(2048));
                const auto width = in.keys.Whole("word_embed_proj_dim", 1, 1 << 20);
                if (width && *width != in.Dim("D")) {
                  in.keys.Refuse(
                      "word_embed_proj_dim",
                      fmt::format("only hidden_size, {}, is supported: products between embeddings and "
                                  "layers are not there",
                                  in.Dim("D")));
                }
              },
          .write =
              [](Exporting& out) {
                const auto rows = out.graph.Whole(DimOf("embedding.positions", 0));
                const auto width = out.graph.Whole(DimOf("embedding.tokens", 1));
                if (!rows || *rows < 3 || !width)
                  return out.problems.emplace_back("it has no table of positions with two rows more"), void();
                out.config["max_position_embeddings"] = *rows - 2;
                out.config["word_embed_proj_dim"] = *width;
              }};
}

std::vector<WeightRow> OptWeights(const std::string& prefix) {
  const std::string layer = prefix + "layers.{l}.";
  std::vector<WeightRow> rows = {Same("embedding.tokens", prefix + "embed_tokens.weight"),
                                 Same("embedding.positions", prefix + "embed_positions.weight"),
                                 Same("head.weight", "lm_head.weight")};
  for (const std::string_view kind : {"weight", "bias"}) {
    const auto theirs = [&](std::string_view part) {
      return fmt::format("{}self_attn.{}_proj.{}", layer, part, kind);
    };
    rows.push_back({.ours = fmt::format("layers.{{l}}.attention.qkv.{}", kind),
                    .theirs = {theirs("q"), theirs("k"), theirs("v")},
                    .how = How::kQkv});
  }
  return Joined(rows, WithBiases({{"final_norm", prefix + "final_layer_norm"},
                                  {"layers.{l}.attention.norm", layer + "self_attn_layer_norm"},
                                  {"layers.{l}.attention.proj", layer + "self_attn.out_proj"},
                                  {"layers.{l}.mlp.norm", layer + "final_layer_norm"},
                                  {"layers.{l}.mlp.fc1", layer + "fc1"},
                                  {"layers.{l}.mlp.fc2", layer + "fc2"}}));
}

}  // namespace

Family OptFamily() {
  constexpr std::string_view kPostNorm = "norms stand before the branches";
  return {
      .name = "opt",
      .model_types = {"opt"},
      .architectures = {"OPTForCausalLM"},
      .blocks = "engine:configs/blocks/opt.toml",
      .keys = {Count("hidden_size", 768, "D", DimOf("embedding.tokens", 1)),
               Count("num_hidden_layers", 12, "L", LayersOf("layers")),
               Count("num_attention_heads", 12, "H", InputDim("layers.0.attention.core", 0, 2)),
               Count("ffn_dim", 3072, "F", InputDim("layers.0.mlp.fc2", 0, 2)),
               Count("vocab_size", 50272, "V", DimOf("embedding.tokens", 0)),
               Act("activation_function", "relu", {"block/mlp/activation/act"}, "layers.0.mlp.activation"),
               {.key = "do_layer_norm_before", .is = Is::kFixed, .initial = true, .note = kPostNorm},
               {.key = "_remove_final_layer_norm",
                .is = Is::kFixed,
                .initial = false,
                .note = "the last layer has a norm behind it"},
               {.key = "enable_bias", .is = Is::kFixed, .initial = true, .note = "all products have biases"},
               {.key = "layer_norm_elementwise_affine",
                .is = Is::kFixed,
                .initial = true,
                .note = "norms have weights and biases"},
               {.key = "init_std",
                .is = Is::kIgnored,
                .note = "of weights that are drawn, and these are read"},
               Dropout("dropout"),
               Dropout("attention_dropout"),
               Dropout("activation_dropout"),
               Dropout("layerdrop")},
      .features = {HeadWidth("hidden_size", "num_attention_heads"), OptWidths(), Tied(true, true)},
      .weights = OptWeights("model.decoder."),
      .other_weights = OptWeights("decoder.")};
}

}  // namespace engine::hf

// GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373). The rows of query_key_value are each head's queries, keys and values, as ours
// are.
#include <fmt/format.h>

#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

// Keys under which releases 4.45 and later repeat two others.
Feature Repeated() {
  return {.keys = {"rope_theta", "partial_rotary_factor"},
          .read =
              [](Importing& in) {
                for (const auto& [key, first] :
                     {std::pair<std::string_view, std::string_view>{"rope_theta", "rotary_emb_base"},
                      {"partial_rotary_factor", "rotary_pct"}}) {
                  const nlohmann::json* value = in.keys.Take(key);
                  const nlohmann::json* said = in.keys.Take(first);
                  if (value != nullptr && (said == nullptr || *value != *said))
                    in.keys.Refuse(key,
                                   fmt::format("this family's key is {}, and it says something else", first));
                }
              },
          .write = [](Exporting&) {}};
}

// Feed-forward parts that read what attention has added to the stream.
Feature ParallelResidual() {
  return {.keys = {"use_parallel_residual"},
          .read =
              [](Importing& in) {
                if (in.keys.Flag("use_parallel_residual").value_or(true)) return;
                in.draft.Edit(R"([[model.after]]
block = "parallel"
step = "attention.proj"
with = { do = "residual", as = "attention.residual", of = ["x", "attention.proj"], to = "x" }

[[model.replace]]
block = "parallel"
step = "residual"
with = { do = "residual", as = "residual", of = ["x", "mlp.fc2"], to = "x" }
)");
              },
          .write =
              [](Exporting& out) {
                const graph::Node* of_attention = out.graph.FindNode("layers.0.attention.norm");
                const graph::Node* of_mlp = out.graph.FindNode("layers.0.mlp.norm");
                out.config["use_parallel_residual"] = of_attention != nullptr && of_mlp != nullptr &&
                                                      of_attention->inputs[0] == of_mlp->inputs[0];
              }};
}

}  // namespace

Family GptNeoxFamily() {
  const std::string layer = "gpt_neox.layers.{l}.";
  return {
      .name = "gpt_neox",
      .model_types = {"gpt_neox"},
      .architectures = {"GPTNeoXForCausalLM"},
      .blocks = "engine:configs/blocks/neox.toml",
      .keys = {Count("hidden_size", 6144, "D", DimOf("embedding.tokens", 1)),
               Count("num_hidden_layers", 44, "L", LayersOf("layers")),
               Count("num_attention_heads", 64, "H", InputDim("layers.0.attention.core", 0, 2)),
               Count("intermediate_size", 24576, "F", InputDim("layers.0.mlp.fc2", 0, 2)),
               Count("vocab_size", 50432, "V", DimOf("embedding.tokens", 0)),
               Act("hidden_act", "gelu", {"block/parallel/mlp.activation/act"}, "layers.0.mlp.activation"),
               Epsilon("layer_norm_eps", 1e-5,
                       {"main/final_norm/epsilon", "block/parallel/attention.norm/epsilon",
                        "block/parallel/mlp.norm/epsilon"}),
               {.key = "attention_bias",
                .is = Is::kFlag,
                .initial = true,
                .to = {"block/parallel/attention.qkv/bias", "block/parallel/attention.proj/bias"},
                .from = HasParameter("layers.0.attention.qkv.bias")},
               Dropout("attention_dropout"),
               Dropout("attention_probs_dropout_prob"),
               Dropout("hidden_dropout_prob"),
               Dropout("hidden_dropout")},
      .features = {HeadWidth("hidden_size", "num_attention_heads"),
                   Rope({.theta = 1e4,
                         .partial = 0.25,
                         .positions = 2048,
                         .blocks_say_width = true,
                         .theta_key = "rotary_emb_base",
                         .partial_key = "rotary_pct"}),
                   Repeated(), ParallelResidual(), Tied(false, false, "embed_out.weight")},
      .weights = Joined(
          {Same("embedding.tokens", "gpt_neox.embed_in.weight"), Same("head.weight", "embed_out.weight")},
          WithBiases({{"final_norm", "gpt_neox.final_layer_norm"},
                      {"layers.{l}.attention.norm", layer + "input_layernorm"},
                      {"layers.{l}.attention.qkv", layer + "attention.query_key_value"},
                      {"layers.{l}.attention.proj", layer + "attention.dense"},
                      {"layers.{l}.mlp.norm", layer + "post_attention_layernorm"},
                      {"layers.{l}.mlp.fc1", layer + "mlp.dense_h_to_4h"},
                      {"layers.{l}.mlp.fc2", layer + "mlp.dense_4h_to_h"}})),
      .ignored = {"*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

// Falcon (arXiv 2311.16867). The rows of query_key_value are each group's queries, its keys and its values, as ours are. In the form
// of 7B both branches read one norm, and all heads share their keys and values; the later form, of 40B, 180B and 11B, has groups of
// heads, and two norms or one.
#include <fmt/format.h>

#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

using nlohmann::json;

constexpr double kFalconEpsilon = 1e-5;

// Each branch has a norm of its own.
void NormEachBranch(Importing& in, double epsilon) {
  in.draft.Edit(fmt::format(R"([[model.replace]]
block = "parallel"
step = "norm"
with = {{ do = "layer_norm", as = "attention.norm", of = "x", epsilon = {0} }}

[[model.before]]
block = "parallel"
step = "mlp.fc1"
with = {{ do = "layer_norm", as = "mlp.norm", of = "x", epsilon = {0} }}
)",
                            Decimal(epsilon)));
  in.draft.SetWord("block/parallel/mlp.fc1/of", "mlp.norm");
}

void ReadForm(Importing& in) {
  const std::int64_t heads = in.Dim("H");
  const bool later = in.keys.Flag("new_decoder_architecture").value_or(false);
  const bool shared = in.keys.Flag("multi_query").value_or(true);
  const auto groups = in.keys.Whole("num_kv_heads", 1, 65536);
  const auto old_groups = in.keys.Whole("n_head_kv", 1, 65536);
  const auto norms = in.keys.Whole("num_ln_in_parallel_attn", 1, 2);
  const double epsilon = in.keys.Number("layer_norm_epsilon", 0, 1).value_or(kFalconEpsilon);
  in.draft.Set("main/final_norm/epsilon", epsilon);
  if (later && groups && old_groups && *groups != *old_groups)
    in.keys.Refuse("n_head_kv", "it is another name of num_kv_heads, which has another value");
  if (later) {
    in.draft.SetDim("K", groups.value_or(old_groups.value_or(heads)));
  } else {
    in.draft.SetDim("K", shared ? 1 : heads);
    for (const char* key : {"num_kv_heads", "n_head_kv"}) {
      if (const json* value = in.keys.Take(key))
        in.notes.push_back(
            fmt::format("{} = {}: it counts only with new_decoder_architecture", key, ShownJson(*value)));
    }
  }
  if (later && norms.value_or(2) == 2) return NormEachBranch(in, epsilon);
  in.draft.Set("block/parallel/norm/epsilon", epsilon);
}

void WriteForm(Exporting& out) {
  const auto heads = out.graph.Whole(InputDim("layers.0.attention.core", 0, 2));
  const auto groups = out.graph.Whole(InputDim("layers.0.attention.core", 1, 2));
  const auto epsilon = out.graph.Number(AttributeOf("final_norm", "epsilon"));
  if (!heads || !groups || !epsilon)
    return out.problems.emplace_back("it has no attention, or no last norm"), void();
  const bool two = out.graph.FindParameter("layers.0.mlp.norm.weight") != nullptr;
  const bool later = two || (*groups != 1 && *groups != *heads);
  out.config["new_decoder_architecture"] = later;
  out.config["multi_query"] = later || *groups == 1;
  out.config["layer_norm_epsilon"] = *epsilon;
  if (!later) return;
  out.config["num_kv_heads"] = *groups;
  if (!two) out.config["num_ln_in_parallel_attn"] = 1;
}

}  // namespace

Family FalconFamily() {
  const std::string layer = "transformer.h.{l}.";
  KeyRow layers = Count("num_hidden_layers", 32, "L", LayersOf("layers"));
  layers.aliases = {"n_layer"};
  KeyRow heads = Count("num_attention_heads", 71, "H", InputDim("layers.0.attention.core", 0, 2));
  heads.aliases = {"n_head"};
  return {
      .name = "falcon",
      .model_types = {"falcon", "RefinedWebModel", "RefinedWeb"},
      .architectures = {"FalconForCausalLM", "RWForCausalLM"},
      .blocks = "engine:configs/blocks/falcon.toml",
      .keys = {Count("hidden_size", 4544, "D", DimOf("embedding.tokens", 1)),
               layers,
               heads,
               Count("ffn_hidden_size", "4*D", "F", InputDim("layers.0.mlp.fc2", 0, 2)),
               Count("vocab_size", 65024, "V", DimOf("embedding.tokens", 0)),
               Act("activation", "gelu", {"block/parallel/mlp.activation/act"}, "layers.0.mlp.activation"),
               {.key = "bias",
                .is = Is::kFlag,
                .initial = false,
                .to = {"block/parallel/attention.qkv/bias", "block/parallel/attention.proj/bias",
                       "block/parallel/mlp.fc1/bias", "block/parallel/mlp.fc2/bias"},
                .from = HasParameter("layers.0.attention.qkv.bias")},
               {.key = "alibi",
                .is = Is::kFixed,
                .initial = false,
                .note = "its scores are divided after the biases are added; rotary positions are read"},
               {.key = "parallel_attn",
                .is = Is::kFixed,
                .initial = true,
                .note = "both branches read the stream side by side"},
               {.key = "apply_residual_connection_post_layernorm", .is = Is::kUnread, .initial = false},
               {.key = "ff_factor", .is = Is::kIgnored, .note = "ffn_hidden_size counts"},
               Dropout("attention_dropout"),
               Dropout("hidden_dropout")},
      .features = {HeadWidth("hidden_size", "num_attention_heads"),
                   {.keys = {"new_decoder_architecture", "multi_query", "num_kv_heads", "n_head_kv",
                             "num_ln_in_parallel_attn", "layer_norm_epsilon"},
                    .read = ReadForm,
                    .write = WriteForm},
                   Rope({.theta = 1e4, .positions = 2048, .whole = true}),
                   Tied(true, true)},
      .weights = Joined({Same("embedding.tokens", "transformer.word_embeddings.weight"),
                         Same("head.weight", "lm_head.weight")},
                        WithBiases({{"final_norm", "transformer.ln_f"},
                                    {"layers.{l}.norm", layer + "input_layernorm"},
                                    {"layers.{l}.attention.norm", layer + "ln_attn"},
                                    {"layers.{l}.mlp.norm", layer + "ln_mlp"},
                                    {"layers.{l}.attention.qkv", layer + "self_attention.query_key_value"},
                                    {"layers.{l}.attention.proj", layer + "self_attention.dense"},
                                    {"layers.{l}.mlp.fc1", layer + "mlp.dense_h_to_4h"},
                                    {"layers.{l}.mlp.fc2", layer + "mlp.dense_4h_to_h"}})),
      .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

// Gemma 1 to 3, text (arXiv 2403.08295, 2408.00118, 2503.19786). Their RMSNorm multiplies by 1 + weight, and so does ours with
// gain_offset = 1: the weights are the same numbers.
#include <fmt/format.h>

#include <cmath>

#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

using nlohmann::json;

constexpr std::string_view kTanh = "gelu_pytorch_tanh";

// hidden_activation counts. Gemma's first files have hidden_act = "gelu", but the models were trained with the tanh form,
// which transformers takes where hidden_activation is not said.
Feature Activation() {
  return {.keys = {"hidden_activation", "hidden_act"},
          .read =
              [](Importing& in) {
                std::string name(kTanh);
                const auto old = in.keys.Word("hidden_act");
                if (const auto word = in.keys.Word("hidden_activation")) {
                  name = *word;
                } else if (old && *old != "gelu") {
                  name = *old;
                }
                if (old && *old != name)
                  in.notes.push_back(
                      fmt::format("hidden_act = \"{}\": Gemma's activation is \"{}\"", *old, name));
                const std::string_view act = ActOfName(name);
                if (act.empty())
                  return in.keys.Refuse("hidden_activation", "no activation that is supported");
                in.draft.SetWord("block/mlp/activation/act", act);
              },
          .write =
              [](Exporting& out) {
                const auto act = out.graph.Act(ActOf("layers.0.mlp.activation"));
                const std::string_view name = act == "gelu_tanh" ? kTanh : act ? NameOfAct(*act) : kTanh;
                out.config["hidden_act"] = name;
                out.config["hidden_activation"] = name;
              }};
}

// Of scores: query_pre_attn_scalar^(−1/2). It need not be a whole number.
Feature ScoreScale() {
  return {.keys = {"query_pre_attn_scalar"},
          .read =
              [](Importing& in) {
                const double scalar = in.keys.Number("query_pre_attn_scalar", 1e-6, 1e9).value_or(256);
                in.draft.Set("block/attention/core/scale", 1 / std::sqrt(scalar));
              },
          .write =
              [](Exporting& out) {
                const auto scale = out.graph.Number(AttributeOf("layers.0.attention.core", "scale"));
                if (!scale || *scale <= 0)
                  return out.problems.emplace_back("its scores have no scale"), void();
                const double scalar = 1 / (*scale * *scale);
                const double whole = std::round(scalar);
                if (std::fabs(scalar - whole) < 1e-9 * scalar) {
                  out.config["query_pre_attn_scalar"] = static_cast<std::int64_t>(whole);
                } else {
                  out.config["query_pre_attn_scalar"] = scalar;
                }
              }};
}

// A cap of a step; null: there is none.
std::optional<double> ReadCap(Importing& in, std::string_view key, double initial) {
  if (in.keys.IsNull(key)) return std::nullopt;
  return in.keys.Number(key, 1e-6, 1e6).value_or(initial);
}

Feature Caps() {
  return {.keys = {"attn_logit_softcapping", "final_logit_softcapping"},
          .read =
              [](Importing& in) {
                in.draft.Set("block/attention/core/softcap",
                             ReadCap(in, "attn_logit_softcapping", 50).value_or(0.0));
                if (const auto cap = ReadCap(in, "final_logit_softcapping", 30)) {
                  in.draft.Set("main/head.cap/cap", *cap);
                } else {
                  in.draft.Edit("[[model.remove]]\nstep = \"head.cap\"\n");
                }
              },
          .write =
              [](Exporting& out) {
                const auto scores = out.graph.Number(AttributeOf("layers.0.attention.core", "softcap"));
                const auto logits = out.graph.Number(AttributeOf("head.cap", "cap"));
                out.config["attn_logit_softcapping"] = scores ? json(*scores) : json();
                out.config["final_logit_softcapping"] = logits ? json(*logits) : json();
              }};
}

// Two tables: layers with a window are rotated by one of their own, which no scaling changes. Transformers 5 has a table of keys
// for each kind of layer, those before it rope_local_base_freq.
void ReadTwoTables(Importing& in) {
  RopeOptions full{.theta = 1e6, .positions = 131072, .whole = true};
  RopeOptions local{.theta = 1e4, .whole = true, .table = "local"};
  const std::int64_t positions =
      in.keys.Whole("max_position_embeddings", 1, std::int64_t{1} << 30).value_or(full.positions);
  full.theta = in.keys.Number("rope_theta", 1.0001, 1e15).value_or(full.theta);
  local.theta = in.keys.Number("rope_local_base_freq", 1.0001, 1e15).value_or(local.theta);
  const json none = json::object();
  const json* both = in.keys.Take("rope_parameters");
  const json* scaling = in.keys.Take("rope_scaling");
  std::string full_name = "rope_scaling.", local_name = "rope_local_base_freq.";
  const json* of_full = scaling != nullptr ? scaling : &none;
  const json* of_local = &none;
  if (both != nullptr && both->is_object() && both->contains("full_attention")) {
    full_name = "rope_parameters.full_attention.";
    local_name = "rope_parameters.sliding_attention.";
    of_full = &(*both)["full_attention"];
    if (both->contains("sliding_attention")) of_local = &(*both)["sliding_attention"];
    ConfigKeys kinds(*both, "rope_parameters.", in.problems);
    kinds.Take("full_attention");
    kinds.Take("sliding_attention");
    for (const std::string& key : kinds.Rest()) kinds.Refuse(key, "no kind of layer that there is");
  } else if (both != nullptr) {
    return in.keys.Refuse("rope_parameters",
                          "it must have an object full_attention and one sliding_attention");
  }
  if (!of_full->is_object() || !of_local->is_object())
    return in.Problem(full_name + " each table of rotary positions must be an object");
  ConfigKeys full_keys(*of_full, full_name, in.problems), local_keys(*of_local, local_name, in.problems);
  ReadRotaryTable(full_keys, in, full, positions, std::nullopt);
  ReadRotaryTable(local_keys, in, local, positions, std::nullopt);
}

void WriteTwoTables(Exporting& out) {
  const std::vector<std::int64_t> windows = WindowsOf(out.graph, "layers");
  out.config["max_position_embeddings"] =
      std::max({out.recipe.model.max_positions, out.recipe.data.sequence_length, std::int64_t{1}});
  out.config["rope_theta"] = 1e6;
  out.config["rope_local_base_freq"] = 1e4;
  out.config["rope_scaling"] = nullptr;
  for (std::size_t i = windows.size(); i-- > 0;) {
    const auto rotation = RotationOfLayer(out.graph, "layers", static_cast<std::int64_t>(i));
    if (!rotation) {
      out.problems.push_back(fmt::format("there are no rotary positions in layer {}", i));
      continue;
    }
    const double base = rotation->attributes->Float("base");
    out.config[windows[i] > 0 ? "rope_local_base_freq" : "rope_theta"] = base;
    if (windows[i] == 0) out.config["rope_scaling"] = RopeScalingOf(*rotation, out);
  }
}

Feature TwoTables() {
  return {.keys = {"max_position_embeddings", "rope_theta", "rope_local_base_freq", "rope_parameters",
                   "rope_scaling"},
          .read = ReadTwoTables,
          .write = WriteTwoTables};
}

std::vector<KeyRow> GemmaSizes(std::initializer_list<std::pair<std::string_view, json>> defaults) {
  std::vector<KeyRow> rows = WithDefaults(LlamaSizes(), defaults);
  std::erase_if(rows, [](const KeyRow& row) { return row.key == "hidden_act"; });
  rows.push_back(AttentionBias());
  return rows;
}

// Norms before and behind each branch.
std::vector<WeightRow> SandwichWeights(const std::string& prefix, const std::string& head) {
  const std::string layer = prefix + "layers.{l}.";
  return Joined(Without(LlamaWeights(prefix, head), {"layers.{l}.mlp.norm.weight"}),
                {Same("layers.{l}.attention.post_norm.weight", layer + "post_attention_layernorm.weight"),
                 Same("layers.{l}.mlp.norm.weight", layer + "pre_feedforward_layernorm.weight"),
                 Same("layers.{l}.mlp.post_norm.weight", layer + "post_feedforward_layernorm.weight")});
}

std::vector<WeightRow> Gemma3Weights(const std::string& prefix, const std::string& head) {
  const std::string attention = prefix + "layers.{l}.self_attn.";
  return Joined(SandwichWeights(prefix, head),
                {Same("layers.{l}.attention.q_norm.weight", attention + "q_norm.weight"),
                 Same("layers.{l}.attention.k_norm.weight", attention + "k_norm.weight")});
}

}  // namespace

Family GemmaFamily() {
  return {
      .name = "gemma",
      .model_types = {"gemma"},
      .architectures = {"GemmaForCausalLM"},
      .blocks = "engine:configs/blocks/gemma.toml",
      .keys = Joined(
          GemmaSizes({{"vocab_size", 256000},
                      {"hidden_size", 3072},
                      {"intermediate_size", 24576},
                      {"num_hidden_layers", 28},
                      {"num_attention_heads", 16},
                      {"num_key_value_heads", 16},
                      {"head_dim", 256}}),
          {Epsilon("rms_norm_eps", 1e-6,
                   {"main/final_norm/epsilon", "block/attention/norm/epsilon", "block/mlp/norm/epsilon"})}),
      .features = {Activation(), Rope({.theta = 1e4, .positions = 8192, .whole = true}), Tied(true, true)},
      .weights = LlamaWeights(),
      .ignored = {"*.rotary_emb.inv_freq"}};
}

Family Gemma2Family() {
  return {
      .name = "gemma2",
      .model_types = {"gemma2"},
      .architectures = {"Gemma2ForCausalLM"},
      .blocks = "engine:configs/blocks/gemma2.toml",
      .keys = Joined(GemmaSizes({{"vocab_size", 256000},
                                 {"hidden_size", 2304},
                                 {"intermediate_size", 9216},
                                 {"num_hidden_layers", 26},
                                 {"num_attention_heads", 8},
                                 {"num_key_value_heads", 4},
                                 {"head_dim", 256}}),
                     {Epsilon("rms_norm_eps", 1e-6,
                              {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                               "block/attention/post_norm/epsilon", "block/mlp/norm/epsilon",
                               "block/mlp/post_norm/epsilon"})}),
      .features = {Activation(), Rope({.theta = 1e4, .positions = 8192, .whole = true}), Tied(true, true),
                   ScoreScale(), Caps(), Windows({.initial = 4096, .full_every = 2, .blocks_cycle = true})},
      .weights = SandwichWeights("model.", "lm_head.weight")};
}

namespace {

// `prefix`: of its tensors; `head`: what a copy of the table would be called.
Family Gemma3Of(const std::string& prefix, std::string_view head) {
  return {.name = "gemma3_text",
          .model_types = {"gemma3_text"},
          .architectures = {"Gemma3ForCausalLM"},
          .blocks = "engine:configs/blocks/gemma3.toml",
          .keys = Joined(GemmaSizes({{"vocab_size", 262208},
                                     {"hidden_size", 2304},
                                     {"intermediate_size", 9216},
                                     {"num_hidden_layers", 26},
                                     {"num_attention_heads", 8},
                                     {"num_key_value_heads", 4},
                                     {"head_dim", 256}}),
                         {Epsilon("rms_norm_eps", 1e-6,
                                  {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                                   "block/attention/q_norm/epsilon", "block/attention/k_norm/epsilon",
                                   "block/attention/post_norm/epsilon", "block/mlp/norm/epsilon",
                                   "block/mlp/post_norm/epsilon"}),
                          {.key = "attn_logit_softcapping", .is = Is::kFixed},
                          {.key = "final_logit_softcapping", .is = Is::kFixed},
                          {.key = "use_bidirectional_attention",
                           .is = Is::kFixed,
                           .initial = false,
                           .note = "a decoder's tokens see those before them"}}),
          .features = {Activation(), TwoTables(), Tied(true, true, head), ScoreScale(),
                       Windows({.initial = 4096,
                                .full_every = 6,
                                .blocks_cycle = true,
                                .tables_full = "rope",
                                .tables_local = "local"})},
          .weights = Gemma3Weights(prefix, std::string(head))};
}

}  // namespace

Family Gemma3TextFamily() { return Gemma3Of("model.", "lm_head.weight"); }

// With an image tower, of which nothing is read: the model of its text, trained on text.
Family Gemma3Family() {
  constexpr std::string_view kTower = "of the image tower, which is left out";
  Family family = Gemma3Of("language_model.model.", "language_model.lm_head.weight");
  family.name = "gemma3";
  family.model_types = {"gemma3"};
  family.architectures = {"Gemma3ForConditionalGeneration"};
  family.nested = "text_config";
  for (const std::string_view key :
       {"vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index",
        "boi_token_id", "eoi_token_id", "image_token_id"})
    family.around.push_back({.key = key, .is = Is::kIgnored, .note = kTower});
  family.around.push_back({.key = "tie_word_embeddings", .is = Is::kFixed, .initial = true});
  family.ignored = {"vision_tower.*", "multi_modal_projector.*"};
  return family;
}

}  // namespace engine::hf

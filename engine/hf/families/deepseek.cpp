// DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437): multi-head latent attention, dense layers, then layers of experts. A stack of
// ours has the dense ones, another one those of experts. Of each head's queries theirs has the rotated features last, ours first;
// both rotate neighbouring features.
#include <fmt/format.h>

#include <cmath>

#include "engine/hf/families/families.h"
#include "engine/hf/features.h"

namespace engine::hf {
namespace {

using nlohmann::json;

struct DeepSeekDefaults {
  std::int64_t layers, dense, width, q_rank, shared, experts, top;
};

// YaRN's stretch of scores and angles by a factor, 0.1·m·ln(factor) + 1, and the m of a stretch.
double StretchOf(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }
double ScaleOf(double factor, double stretch) {
  const double m = (stretch - 1) / (0.1 * std::log(factor));
  return std::round(m * 1e10) / 1e10;  // 0.707, not 0.7070000000000001
}

// Of a table that was read, so that what is of another type is null.
double NumberIn(const json& table, const char* key, double otherwise) {
  const auto found = table.find(key);
  return found != table.end() && found->is_number() ? found->get<double>() : otherwise;
}
std::string WordIn(const json& table, const char* key, const std::string& otherwise) {
  const auto found = table.find(key);
  return found != table.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

// num_hidden_layers of both stacks, first_k_dense_replace of the dense one, whose width is intermediate_size. Layers behind the last
// are the module for further tokens.
void ReadStacks(Importing& in, const DeepSeekDefaults& defaults) {
  const std::int64_t layers = in.keys.Whole("num_hidden_layers", 1, 2000).value_or(defaults.layers);
  const std::int64_t dense = in.keys.Whole("first_k_dense_replace", 0, 2000).value_or(defaults.dense);
  const std::int64_t width = in.keys.Whole("intermediate_size", 1, 1 << 20).value_or(defaults.width);
  if (dense >= layers)
    return in.keys.Refuse("first_k_dense_replace",
                          fmt::format("at least one of the {} layers must have experts", layers));
  in.draft.SetDim("L", layers);
  in.draft.SetDim("F", width);
  if (dense > 0) {
    in.draft.SetDim("J", dense);
  } else {
    in.draft.Edit("[[model.remove]]\nstep = \"dense\"\n");
    in.draft.SetToml("main/layers/repeat", "\"L\"");
  }
  std::vector<WeightRow> rows;
  for (WeightRow row : in.rows) {
    const bool of_layer = row.ours.starts_with("layers.");
    // Both stacks have the same attention, and the dense one Llama's feed-forward parts.
    if (of_layer && dense > 0 && row.ours.find(".mlp.") == std::string::npos) {
      rows.push_back(row);
      rows.back().ours.replace(0, 6, "dense");
    }
    if (of_layer) row.first_layer = dense;
    if (dense > 0 || !row.ours.starts_with("dense.")) rows.push_back(std::move(row));
  }
  in.rows = std::move(rows);
  const auto more = in.keys.Whole("num_nextn_predict_layers", 0, 64),
             alias = in.keys.Whole("num_mtp_layers", 0, 64);
  const std::int64_t further = std::max(more.value_or(alias.value_or(1)), std::int64_t{1});
  for (std::int64_t i = 0; i < further; ++i)
    in.ignored.push_back(fmt::format("model.layers.{}.*", layers + i));
  if (more.value_or(0) > 0)
    in.notes.push_back(fmt::format(
        "num_nextn_predict_layers = {}: the module for further tokens, model.layers.{}, is not read", *more,
        layers));
}

void WriteStacks(Exporting& out) {
  const std::int64_t dense = out.graph.Layers("dense");
  out.config["num_hidden_layers"] = dense + out.graph.Layers("layers");
  out.config["first_k_dense_replace"] = dense;
  out.config["num_nextn_predict_layers"] = 0;
  if (const auto width = out.graph.Whole(InputDim("dense.0.mlp.fc2", 0, 2)))
    out.config["intermediate_size"] = *width;
}

// Queries of a latent, or of the stream; scores; the widths that follow from others.
void ReadAttention(Importing& in, const DeepSeekDefaults& defaults, bool blocks_have_latent) {
  const std::int64_t n = in.Dim("N"), r = in.Dim("R"), heads = in.Dim("H");
  in.draft.SetDim("E", n + r, "N+R");
  for (const auto& [key, value] : {std::pair<std::string_view, std::int64_t>{"head_dim", r},
                                   {"qk_head_dim", n + r},
                                   {"num_key_value_heads", heads}}) {
    const auto said = in.keys.Whole(key, 1, 1 << 20);
    if (said && *said != value)
      in.keys.Refuse(key, fmt::format("only {} is supported, which follows from other keys", value));
  }
  std::optional<std::int64_t> rank = in.keys.Whole("q_lora_rank", 1, 1 << 20);
  if (!rank && !in.keys.IsNull("q_lora_rank")) rank = defaults.q_rank;
  const std::string q = "model.layers.{l}.self_attn.";
  std::string product = q + "q_proj.weight";
  if (rank) {
    in.draft.SetDim("Q", *rank);
    product = q + "q_b_proj.weight";
    in.rows.push_back(Same("layers.{l}.attention.q_down.weight", q + "q_a_proj.weight"));
    in.rows.push_back(Same("layers.{l}.attention.q_norm.weight", q + "q_a_layernorm.weight"));
    const double epsilon = in.keys.Number("rms_norm_eps", 0, 1).value_or(1e-6);
    if (blocks_have_latent) {
      in.draft.Set("block/attention/q_norm/epsilon", epsilon);
    } else {
      in.draft.SetToml("means/Q", "\"other\"");
      in.draft.Edit(fmt::format(R"([[model.before]]
block = "attention"
step = "q"
with = [
  {{ do = "linear", as = "q_down", out = ["Q"] }},
  {{ do = "rms_norm", as = "q_norm", epsilon = {} }},
]
)",
                                Decimal(epsilon)));
    }
  } else if (blocks_have_latent) {
    in.draft.SetDim("Q", 1);  // the blocks say what it means, and no step is left that has it
    for (const char* step : {"q_down", "q_norm"})
      in.draft.Edit(fmt::format("[[model.remove]]\nblock = \"attention\"\nstep = \"{}\"\n", step));
  }
  in.rows.push_back({.ours = "layers.{l}.attention.q.weight", .theirs = {product}, .how = How::kRopeLast});
}

void WriteAttention(Exporting& out) {
  out.config["q_lora_rank"] = nullptr;
  if (const auto rank = out.graph.Whole(DimOf("layers.0.attention.q_norm.weight", 0)))
    out.config["q_lora_rank"] = *rank;
  if (const auto heads = out.graph.Whole(InputDim("layers.0.attention.core", 0, 2)))
    out.config["num_key_value_heads"] = *heads;
}

// Of both tables, of queries and of the features that all heads' keys share. Our blocks have YaRN's, which without a scaling has
// the factor 1.
Feature LatentRope() {
  const Feature rope =
      Rope({.theta = 1e4, .positions = 2048, .whole = true, .head = "R", .more_tables = {"shared"}});
  Feature feature = rope;
  feature.read = [rope](Importing& in) {
    rope.read(in);
    const json& config = in.keys.object();
    double factor = 1, stretch = 1, angles = 1;
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const auto found = config.find(key);
      if (found == config.end() || !found->is_object() || !in.problems->empty()) continue;
      const std::string type = WordIn(*found, "rope_type", WordIn(*found, "type", "default"));
      if (type == "default") continue;
      if (type != "yarn") return in.keys.Refuse(key, "only yarn is supported of this family, or no scaling");
      factor = NumberIn(*found, "factor", 0);
      if (factor < 1) return in.keys.Refuse(key, "its factor must be said");
      const double m = NumberIn(*found, "mscale", 0), m_all = NumberIn(*found, "mscale_all_dim", 0);
      stretch = m_all != 0 ? StretchOf(factor, m_all) : 1;
      angles = m != 0 && m_all != 0 ? StretchOf(factor, m) / StretchOf(factor, m_all) : StretchOf(factor, 1);
      angles = NumberIn(*found, "attention_factor", angles);
    }
    for (const std::string table : {"rotary/rope/", "rotary/shared/"}) {
      in.draft.Set(table + "factor", factor);
      in.draft.Set(table + "attention_factor", angles);
    }
    in.draft.Set("block/attention/core/scale",
                 stretch * stretch / std::sqrt(static_cast<double>(in.Dim("E"))));
  };
  feature.write = [](Exporting& out) {
    const std::optional<Rotation> rotation = RotationOfLayer(out.graph, "layers", 0);
    const auto scale = out.graph.Number(AttributeOf("layers.0.attention.core", "scale"));
    const auto head = out.graph.Whole(InputDim("layers.0.attention.core", 0, 3));
    if (!rotation || !scale || !head || *scale <= 0)
      return out.problems.emplace_back("there are no rotary positions in its first layer, or no scores"),
             void();
    const graph::Attributes& a = *rotation->attributes;
    const bool yarn = a.Has("scaling") && a.String("scaling") == "yarn";
    const double factor = a.Has("factor") ? a.Float("factor") : 1;
    out.config["rope_theta"] = a.Float("base");
    out.config["rope_scaling"] = nullptr;
    out.config["max_position_embeddings"] = LongestSequence(out.recipe);
    if (factor == 1) return;
    if (!yarn) return out.problems.emplace_back("its rotary scaling is not yarn"), void();
    const double original = a.Float("original");
    const double angles = a.Has("attention_factor") ? a.Float("attention_factor") : StretchOf(factor, 1);
    const double stretch = std::sqrt(*scale * std::sqrt(static_cast<double>(*head)));
    json scaling = {{"type", "yarn"}, {"factor", factor}};
    scaling["original_max_position_embeddings"] = static_cast<std::int64_t>(std::llround(original));
    out.config["max_position_embeddings"] = static_cast<std::int64_t>(std::llround(factor * original));
    for (const char* key : {"beta_fast", "beta_slow"}) {
      if (a.Has(key)) scaling[key] = a.Float(key);
    }
    if (a.Int("truncate", 1) == 0) scaling["truncate"] = false;
    const double m_all = ScaleOf(factor, stretch);
    scaling["mscale_all_dim"] = m_all;
    if (m_all == 0) {
      scaling["attention_factor"] = angles;
    } else {
      scaling["mscale"] = ScaleOf(factor, angles * stretch);
    }
    out.config["rope_scaling"] = std::move(scaling);
  };
  return feature;
}

// The width of the experts that all tokens go through, which stand side by side as one.
Feature SharedExperts(std::int64_t initial) {
  return {
      .keys = {"n_shared_experts"},
      .read =
          [=](Importing& in) {
            if (in.keys.IsNull("n_shared_experts"))
              return in.keys.Take("n_shared_experts"),
                     in.Problem(
                         "n_shared_experts = null: layers of experts have one that all tokens go through");
            const std::int64_t count = in.keys.Whole("n_shared_experts", 1, 1024).value_or(initial);
            in.draft.SetDim("Y", count * in.Dim("W"), fmt::format("{}*W", count));
          },
      .write =
          [](Exporting& out) {
            const auto each = out.graph.Whole(DimOf("layers.0.mlp.experts.fc1.weight", 2));
            const auto shared = out.graph.Whole(InputDim("layers.0.mlp.shared_fc2", 0, 2));
            if (!each || !shared || *shared % *each != 0)
              return out.problems.emplace_back("the shared expert's width is no multiple of the others'"),
                     void();
            out.config["n_shared_experts"] = *shared / *each;
          }};
}

void SetGroups(Importing& in, std::int64_t groups, std::int64_t kept, std::int64_t best) {
  in.draft.Set("block/moe/router/groups", groups);
  in.draft.Set("block/moe/router/group_top_k", groups > 1 ? kept : 1);
  in.draft.Set("block/moe/router/group_best", groups > 1 ? best : 0);
}

void WriteGroups(Exporting& out) {
  const auto groups = out.graph.Whole(AttributeOf("layers.0.mlp.router.route", "groups"));
  const auto kept = out.graph.Whole(AttributeOf("layers.0.mlp.router.route", "kept"));
  out.config["n_group"] = groups.value_or(1);
  out.config["topk_group"] = kept.value_or(1);
}

// V2 keeps the groups with the largest score, V3 those with the largest sum of two.
Feature GroupsOfV2() {
  return {.keys = {"n_group", "topk_group", "topk_method"},
          .read =
              [](Importing& in) {
                const std::string method = in.keys.Word("topk_method").value_or("greedy");
                const auto groups = in.keys.Whole("n_group", 1, 65536),
                           kept = in.keys.Whole("topk_group", 1, 65536);
                if (method == "greedy") return SetGroups(in, 1, 1, 0);
                if (method != "group_limited_greedy" || !groups || !kept)
                  return in.keys.Refuse(
                      "topk_method",
                      "it must be greedy, or group_limited_greedy with n_group and topk_group");
                SetGroups(in, *groups, *kept, 1);
              },
          .write =
              [](Exporting& out) {
                WriteGroups(out);
                out.config["topk_method"] = out.config["n_group"] == 1 ? "greedy" : "group_limited_greedy";
              }};
}

Feature GroupsOfV3() {
  return {.keys = {"n_group", "topk_group"},
          .read =
              [](Importing& in) {
                SetGroups(in, in.keys.Whole("n_group", 1, 65536).value_or(8),
                          in.keys.Whole("topk_group", 1, 65536).value_or(4), 2);
              },
          .write = WriteGroups};
}

std::vector<KeyRow> DeepSeekKeys(const DeepSeekDefaults& defaults) {
  KeyRow experts = Count("n_routed_experts", defaults.experts, "X", DimOf("layers.0.mlp.router.weight", 0));
  experts.aliases = {"num_experts", "num_local_experts"};
  return {Count("hidden_size", 7168, "D", DimOf("embedding.tokens", 1)),
          Count("num_attention_heads", 128, "H", InputDim("layers.0.attention.core", 0, 2)),
          Count("kv_lora_rank", 512, "C", DimOf("layers.0.attention.kv_norm.weight", 0)),
          Count("qk_nope_head_dim", 128, "N", DimOf("layers.0.attention.kv.k.weight", 1)),
          Count("qk_rope_head_dim", 64, "R", DimOf("layers.0.attention.kv_down.shared.weight", 1)),
          Count("v_head_dim", 128, "U", DimOf("layers.0.attention.kv.v.weight", 1)),
          Count("moe_intermediate_size", 2048, "W", DimOf("layers.0.mlp.experts.fc1.weight", 2)),
          Count("vocab_size", 129280, "V", DimOf("embedding.tokens", 0)),
          experts,
          Count("num_experts_per_tok", defaults.top > 0 ? json(defaults.top) : json(),
                "block/moe/router/top_k", AttributeOf("layers.0.mlp.router.route", "k")),
          Act("hidden_act", "silu",
              {"block/mlp/activation/act", "block/moe/experts/act", "block/moe/shared_activation/act"},
              "layers.0.mlp.experts.act"),
          Epsilon("rms_norm_eps", 1e-6,
                  {"main/final_norm/epsilon", "block/attention/norm/epsilon",
                   "block/attention/kv_norm/epsilon", "block/mlp/norm/epsilon", "block/moe/norm/epsilon"}),
          {.key = "attention_bias", .is = Is::kFixed, .initial = false, .note = "attention has no biases"},
          {.key = "mlp_bias", .is = Is::kFixed, .initial = false, .note = "products have no biases"},
          {.key = "moe_layer_freq",
           .is = Is::kFixed,
           .initial = 1,
           .note = "all layers from first_k_dense_replace on have experts"},
          {.key = "rope_interleave",
           .is = Is::kFixed,
           .initial = true,
           .note = "neighbouring features are rotated"},
          {.key = "ep_size", .is = Is::kIgnored, .note = "of how experts are laid out"},
          {.key = "seq_aux",
           .is = Is::kIgnored,
           .note = "the router's loss counts sample by sample; aux_samples says more"},
          Dropout("attention_dropout")};
}

// A scale of 1 is not said in the graph.
Feature RouterScale(double initial) {
  return {.keys = {"routed_scaling_factor"},
          .read =
              [=](Importing& in) {
                in.draft.Set("block/moe/router/scale",
                             in.keys.Number("routed_scaling_factor", 1e-6, 1e4).value_or(initial));
              },
          .write =
              [](Exporting& out) {
                out.config["routed_scaling_factor"] =
                    out.graph.Number(AttributeOf("layers.0.mlp.router.route", "scale")).value_or(1.0);
              }};
}

std::vector<WeightRow> DeepSeekWeights() {
  const std::string layer = "model.layers.{l}.", mlp = layer + "mlp.";
  std::vector<WeightRow> rows = {
      Same("embedding.tokens", "model.embed_tokens.weight"),
      Same("final_norm.weight", "model.norm.weight"),
      Same("head.weight", "lm_head.weight"),
      Same("layers.{l}.attention.norm.weight", layer + "input_layernorm.weight"),
      Same("layers.{l}.attention.kv_norm.weight", layer + "self_attn.kv_a_layernorm.weight"),
      Same("layers.{l}.attention.proj.weight", layer + "self_attn.o_proj.weight"),
      Same("dense.{l}.mlp.norm.weight", layer + "post_attention_layernorm.weight"),
      {.ours = "dense.{l}.mlp.fc1.weight",
       .theirs = {mlp + "gate_proj.weight", mlp + "up_proj.weight"},
       .how = How::kStacked},
      Same("dense.{l}.mlp.fc2.weight", mlp + "down_proj.weight"),
      Same("layers.{l}.mlp.norm.weight", layer + "post_attention_layernorm.weight"),
      Same("layers.{l}.mlp.router.bias", mlp + "gate.e_score_correction_bias"),
      {.ours = "layers.{l}.mlp.shared_fc1.weight",
       .theirs = {mlp + "shared_experts.gate_proj.weight", mlp + "shared_experts.up_proj.weight"},
       .how = How::kStacked},
      Same("layers.{l}.mlp.shared_fc2.weight", mlp + "shared_experts.down_proj.weight")};
  return Joined(rows, ExpertWeights(mlp + "gate", mlp + "experts"));
}

// Rows of parts of one tensor of theirs, whose sizes the dims say.
void AddParts(Importing& in) {
  const std::string attention = "model.layers.{l}.self_attn.", ours = "layers.{l}.attention.";
  const std::string down = attention + "kv_a_proj_with_mqa.weight", up = attention + "kv_b_proj.weight";
  const std::int64_t c = in.Dim("C"), r = in.Dim("R"), n = in.Dim("N"), u = in.Dim("U");
  in.rows.push_back({.ours = ours + "kv_down.latent.weight", .theirs = {down}, .slice = {0, c}});
  in.rows.push_back({.ours = ours + "kv_down.shared.weight", .theirs = {down}, .slice = {c, r}});
  in.rows.push_back({.ours = ours + "kv.k.weight", .theirs = {up}, .how = How::kHeadRows, .slice = {0, n}});
  in.rows.push_back({.ours = ours + "kv.v.weight", .theirs = {up}, .how = How::kHeadRows, .slice = {n, u}});
}

// What both have, in this order: rows of attention are made before they are given to both stacks.
std::vector<Feature> DeepSeekFeatures(const DeepSeekDefaults& defaults, bool blocks_have_latent,
                                      double scale) {
  return {{.keys = {"q_lora_rank", "head_dim", "qk_head_dim", "num_key_value_heads"},
           .read =
               [=](Importing& in) {
                 ReadAttention(in, defaults, blocks_have_latent);
                 AddParts(in);
               },
           .write = WriteAttention},
          {.keys = {"num_hidden_layers", "first_k_dense_replace", "intermediate_size",
                    "num_nextn_predict_layers", "num_mtp_layers"},
           .read = [=](Importing& in) { ReadStacks(in, defaults); },
           .write = WriteStacks},
          LatentRope(),
          SharedExperts(defaults.shared),
          RouterScale(scale),
          AuxLoss("aux_loss_alpha", 0.001, "moe"),
          Tied(false, false)};
}

}  // namespace

Family DeepSeekV2Family() {
  const DeepSeekDefaults defaults = {
      .layers = 32, .dense = 0, .width = 11008, .q_rank = 1536, .shared = 2, .experts = 64, .top = 0};
  return {.name = "deepseek_v2",
          .model_types = {"deepseek_v2"},
          .architectures = {"DeepseekV2ForCausalLM"},
          .blocks = "engine:configs/blocks/mla.toml",
          .keys = Joined(WithDefaults(DeepSeekKeys(defaults), {{"vocab_size", 32000},
                                                               {"hidden_size", 4096},
                                                               {"num_attention_heads", 32},
                                                               {"moe_intermediate_size", 1407}}),
                         {{.key = "norm_topk_prob",
                           .is = Is::kFixed,
                           .initial = false,
                           .note = "weights are the experts' probabilities among all"},
                          {.key = "scoring_func",
                           .is = Is::kFixed,
                           .initial = "softmax",
                           .note = "weights are the experts' probabilities among all"}}),
          .features = Joined(DeepSeekFeatures(defaults, false, 1.0), {GroupsOfV2()}),
          .weights = DeepSeekWeights(),
          .ignored = {"*.rotary_emb.inv_freq"}};
}

Family DeepSeekV3Family() {
  const DeepSeekDefaults defaults = {
      .layers = 61, .dense = 3, .width = 18432, .q_rank = 1536, .shared = 1, .experts = 256, .top = 8};
  return {.name = "deepseek_v3",
          .model_types = {"deepseek_v3"},
          .architectures = {"DeepseekV3ForCausalLM"},
          .blocks = "engine:configs/blocks/mla-v3.toml",
          .keys = Joined(DeepSeekKeys(defaults),
                         {{.key = "norm_topk_prob",
                           .is = Is::kFlag,
                           .initial = true,
                           .to = {"block/moe/router/normalize"},
                           .from = AttributeOf("layers.0.mlp.router.route", "normalize")},
                          {.key = "topk_method", .is = Is::kUnread, .initial = "noaux_tc"},
                          {.key = "scoring_func", .is = Is::kUnread, .initial = "sigmoid"}}),
          .features = Joined(DeepSeekFeatures(defaults, true, 2.5), {GroupsOfV3()}),
          .weights = DeepSeekWeights(),
          .ignored = {"*.rotary_emb.inv_freq"}};
}

}  // namespace engine::hf

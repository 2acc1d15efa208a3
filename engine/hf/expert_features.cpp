// Experts of Mixtral, OLMoE and Qwen in a config.json.
#include <fmt/format.h>

#include <algorithm>

#include "engine/hf/features.h"

namespace engine::hf {
namespace {

using nlohmann::json;

// The first of some names of one key that the file has. Names that say different things are a problem.
std::optional<std::int64_t> CountByNames(Importing& in, const std::vector<std::string_view>& names) {
  std::optional<std::int64_t> value;
  for (const std::string_view name : names) {
    const auto own = in.keys.Whole(name, 1, 65536);
    if (own && value && *own != *value)
      in.keys.Refuse(name, fmt::format("it is another name of {}, which has another value", names[0]));
    if (!value) value = own;
  }
  return value;
}

// Which layers are dense: those of mlp_only_layers, and all but each decoder_sparse_step-th.
std::vector<bool> ReadDenseLayers(Importing& in) {
  const std::int64_t layers = in.Dim("L");
  const std::int64_t step = in.keys.Whole("decoder_sparse_step", 1, 65536).value_or(1);
  std::vector<bool> dense(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) dense[static_cast<std::size_t>(i)] = (i + 1) % step != 0;
  const json* list = in.keys.Take("mlp_only_layers");
  if (list == nullptr) return dense;
  bool good = list->is_array();
  for (std::size_t i = 0; good && i < list->size(); ++i) {
    const json& layer = (*list)[i];
    good = layer.is_number_integer() && layer >= 0 && layer < layers;
    if (good) dense[layer.get<std::size_t>()] = true;
  }
  if (!good)
    in.keys.Refuse("mlp_only_layers", fmt::format("it must be a list of layers from 0 to {}", layers - 1));
  return dense;
}

// A stack of layers of two kinds.
void MixLayers(Importing& in, const std::vector<bool>& dense, std::int64_t width) {
  std::string pattern;
  for (const bool is_dense : dense) pattern += is_dense ? 'D' : 'M';
  const double epsilon = in.keys.Number("rms_norm_eps", 0, 1).value_or(1e-6);
  const std::string act(ActOfName(in.keys.Word("hidden_act").value_or("silu")));
  in.draft.SetDim("M", width);
  in.draft.Edit(fmt::format(R"([[model.replace]]
step = "layers"
with = {{ do = "stack", as = "layers", pattern = "{}", letters = {{ D = ["attention as attention", "dense as mlp"], M = ["attention as attention", "mlp as mlp"] }} }}

[block.dense]
steps = [
  {{ do = "rms_norm", as = "norm", of = "x", epsilon = {} }},
  {{ do = "linear", as = "fc1", out = [2, "M"] }},
  {{ do = "gate", as = "activation", act = "{}" }},
  {{ do = "linear", as = "fc2", out = ["D"], init = "branch" }},
  {{ do = "residual", as = "residual", of = ["x", "fc2"], to = "x" }},
]
)",
                            pattern, Decimal(epsilon), act));
}

void ReadLayers(Importing& in, const ExpertOptions& options) {
  const std::vector<bool> dense = ReadDenseLayers(in);
  const auto width = in.keys.Whole("intermediate_size", 1, 1 << 20).value_or(options.dense_width);
  const auto count = std::count(dense.begin(), dense.end(), true);
  if (count == 0) {
    if (in.keys.Has("intermediate_size"))
      in.notes.push_back(
          fmt::format("intermediate_size = {}: no layer has a feed-forward part without experts", width));
    return;
  }
  if (count == static_cast<std::ptrdiff_t>(dense.size()))
    return in.keys.Refuse(in.keys.Has("mlp_only_layers") ? "mlp_only_layers" : "decoder_sparse_step",
                          "no layer has experts; the family without them has such models");
  MixLayers(in, dense, width);
}

void ReadExperts(Importing& in, const ExpertOptions& options) {
  in.draft.SetDim("X", CountByNames(in, options.count_keys).value_or(options.count));
  in.draft.SetDim("T", in.keys.Whole("num_experts_per_tok", 1, 256).value_or(options.top));
  in.draft.SetDim("F", in.keys.Whole(options.width_key, 1, 1 << 20).value_or(options.width));
  if (options.says_normalize)
    in.draft.SetFlag("block/mlp/router/normalize", in.keys.Flag("norm_topk_prob").value_or(false));
  const std::string name = in.keys.Word("hidden_act").value_or("silu");
  const std::string_view act = ActOfName(name);
  if (act.empty()) {
    in.keys.Refuse("hidden_act", "no activation that is supported");
  } else {
    for (const std::string_view place : options.act_places) in.draft.SetWord(place, act);
  }
  if (in.keys.Take("output_router_logits") != nullptr)
    in.notes.emplace_back(
        "output_router_logits: the router's loss is trained by its weight, router_aux_loss_coef");
  if (options.mixed) ReadLayers(in, options);
}

void WriteExperts(Exporting& out, const ExpertOptions& options) {
  const std::string at = FirstExperts(out.graph);
  const auto count = out.graph.Whole(DimOf(at + "router.weight", 0));
  const auto top = out.graph.Whole(AttributeOf(at + "router.route", "k"));
  const graph::Parameter* weight = out.graph.FindParameter(at + "experts.fc1.weight");
  const auto act = out.graph.Act(ActOf(at + "experts.act"));
  if (at.empty() || !count || !top || weight == nullptr || weight->logical_shape.rank() != 4 || !act)
    return out.problems.emplace_back("no layer has a router and gated experts"), void();
  out.config[std::string(options.count_keys[0])] = *count;
  out.config["num_experts_per_tok"] = *top;
  out.config[std::string(options.width_key)] = weight->logical_shape[2];
  out.config["hidden_act"] = NameOfAct(*act);
  if (options.says_normalize)
    out.config["norm_topk_prob"] =
        out.graph.Flag(AttributeOf(at + "router.route", "normalize")).value_or(false);
  if (!options.mixed) return;
  json dense = json::array();
  for (std::int64_t i = 0; i < out.graph.Layers("layers"); ++i) {
    if (out.graph.FindParameter(fmt::format("layers.{}.mlp.router.weight", i)) != nullptr) continue;
    dense.push_back(i);
    const std::string fc2 = fmt::format("layers.{}.mlp.fc2", i);
    if (const auto width = out.graph.Whole(InputDim(fc2, 0, 2))) out.config["intermediate_size"] = *width;
  }
  out.config["decoder_sparse_step"] = 1;
  out.config["mlp_only_layers"] = std::move(dense);
}

}  // namespace

std::string FirstExperts(const GraphView& view, std::string_view stack) {
  for (std::int64_t i = 0; i < view.Layers(stack); ++i) {
    std::string at = fmt::format("{}.{}.mlp.", stack, i);
    if (view.FindParameter(at + "router.weight") != nullptr) return at;
  }
  return "";
}

Feature Experts(const ExpertOptions& options) {
  std::vector<std::string_view> keys = options.count_keys;
  keys.insert(keys.end(), {"num_experts_per_tok", options.width_key, "hidden_act", "output_router_logits"});
  if (options.says_normalize) keys.push_back("norm_topk_prob");
  if (options.mixed) keys.insert(keys.end(), {"decoder_sparse_step", "mlp_only_layers", "intermediate_size"});
  return {.keys = std::move(keys),
          .read = [options](Importing& in) { ReadExperts(in, options); },
          .write = [options](Exporting& out) { WriteExperts(out, options); }};
}

Feature AuxLoss(std::string_view key, double initial, std::string_view block) {
  return {.keys = {key},
          .read =
              [=](Importing& in) {
                const double weight = in.keys.Number(key, 0, 1e3).value_or(initial);
                in.draft.Set(fmt::format("block/{}/router/aux_loss", block), weight);
              },
          .write =
              [=](Exporting& out) {
                const std::string name = FirstExperts(out.graph) + "router.balance";
                double weight = 0;
                for (const graph::Metric& metric : out.graph.graph().metrics()) {
                  if (metric.name == name) weight = metric.weight;
                }
                out.config[std::string(key)] = weight;
              }};
}

std::vector<WeightRow> ExpertWeights(const std::string& router, const std::string& experts,
                                     const std::string& gate, const std::string& up,
                                     const std::string& down) {
  const std::string each = experts + ".{e}.";
  return {Same("layers.{l}.mlp.router.weight", router + ".weight"),
          {.ours = "layers.{l}.mlp.experts.fc1.weight",
           .theirs = {each + gate + ".weight", each + up + ".weight"},
           .how = How::kStacked},
          Same("layers.{l}.mlp.experts.fc2.weight", each + down + ".weight")};
}

std::vector<WeightRow> FusedExpertWeights(const std::string& router, const std::string& experts) {
  return {Same("layers.{l}.mlp.router.weight", router + ".weight"),
          {.ours = "layers.{l}.mlp.experts.fc1.weight",
           .theirs = {experts + ".gate_up_proj"},
           .how = How::kAllExperts},
          {.ours = "layers.{l}.mlp.experts.fc2.weight",
           .theirs = {experts + ".down_proj"},
           .how = How::kAllExperts}};
}

}  // namespace engine::hf

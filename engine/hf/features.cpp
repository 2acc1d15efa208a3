#include "engine/hf/features.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/graph/op.h"

namespace engine::hf {

using nlohmann::json;

Feature Tied(bool initial, bool blocks_tied, std::string_view head) {
  return {.keys = {"tie_word_embeddings"},
          .read =
              [=](Importing& in) {
                const bool tied = in.keys.Flag("tie_word_embeddings").value_or(initial);
                if (tied)
                  in.ignored.emplace_back(head);  // files may have a copy of the table under this name
                if (tied == blocks_tied) return;
                if (tied) return in.draft.SetWord("main/head/weight", "embedding.tokens");
                in.draft.Edit(
                    "[[model.replace]]\nstep = \"head\"\nwith = { do = \"linear\", as = \"head\", out = "
                    "[\"V\"] }\n");
              },
          .write =
              [](Exporting& out) {
                out.config["tie_word_embeddings"] = out.graph.FindParameter("head.weight") == nullptr;
              }};
}

namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

// The shortest list that the layers take in turn.
template <typename T>
std::vector<T> CycleOf(const std::vector<T>& layers) {
  for (std::size_t period = 1; period < layers.size(); ++period) {
    bool repeats = true;
    for (std::size_t i = period; repeats && i < layers.size(); ++i) repeats = layers[i] == layers[i - period];
    if (repeats) return {layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(period)};
  }
  return layers;
}

// Which layers slide by `layer_types`; nothing where the file has no such list, or a bad one, which is reported.
std::optional<std::vector<bool>> ReadLayerTypes(Importing& in, std::size_t layers) {
  const json* types = in.keys.Take("layer_types");
  if (types == nullptr) return std::nullopt;
  std::vector<bool> slides;
  bool good = types->is_array() && types->size() == layers;
  for (std::size_t i = 0; good && i < layers; ++i) {
    slides.push_back((*types)[i] == kSliding);
    good = slides.back() || (*types)[i] == kFull;
  }
  if (good) return slides;
  in.keys.Refuse("layer_types",
                 fmt::format("it must be a list of {} words, each {} or {}", layers, kFull, kSliding));
  return std::nullopt;
}

std::vector<bool> SlidingLayers(Importing& in, const WindowOptions& options) {
  const auto layers = static_cast<std::size_t>(in.Dim("L"));
  // Every so many, the last one, is full.
  std::size_t every = static_cast<std::size_t>(options.full_every);
  if (options.full_every > 0) {
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
      if (const auto pattern = in.keys.Whole(key, 1, 2000)) every = static_cast<std::size_t>(*pattern);
    }
  }
  std::size_t first = 0;
  if (options.asked_for) {
    first = static_cast<std::size_t>(
        in.keys.Whole("max_window_layers", 0, 1 << 20).value_or(options.max_window_layers));
  }
  if (const auto types = ReadLayerTypes(in, layers)) return *types;
  std::vector<bool> slides(layers);
  for (std::size_t i = 0; i < layers; ++i) slides[i] = i >= first && (every == 0 || (i + 1) % every != 0);
  return slides;
}

void ReadWindows(Importing& in, const WindowOptions& options) {
  std::int64_t window = in.keys.IsNull("sliding_window") ? 0 : options.initial;
  in.keys.Take("sliding_window");
  bool asked = true;
  if (options.asked_for) asked = in.keys.Flag("use_sliding_window").value_or(false);
  if (asked) {
    window = in.keys.Whole("sliding_window", 1, std::int64_t{1} << 30).value_or(window);
  } else {
    window = 0;
    if (const json* said = in.keys.Take("sliding_window"))
      in.notes.push_back(fmt::format("sliding_window = {}: use_sliding_window is false", ShownJson(*said)));
  }
  const std::vector<bool> slides = SlidingLayers(in, options);
  std::vector<std::int64_t> windows;
  std::vector<std::string> tables;
  for (const bool slide : slides) {
    windows.push_back(slide ? window : 0);
    tables.push_back(fmt::format("\"{}\"", slide ? options.tables_local : options.tables_full));
  }
  const std::vector<std::int64_t> cycle = CycleOf(windows);
  if (!options.tables_full.empty())
    in.draft.SetToml("main/layers/cycle/table", fmt::format("[{}]", fmt::join(CycleOf(tables), ", ")));
  if (cycle.size() == 1 && !options.blocks_cycle) {
    if (cycle[0] > 0) in.draft.Set("block/attention/core/window", cycle[0]);
    return;
  }
  in.draft.SetToml("main/layers/cycle/window", fmt::format("[{}]", fmt::join(cycle, ", ")));
  if (!options.blocks_cycle) in.draft.SetWord("block/attention/core/window", "$window");
}

void WriteWindows(Exporting& out, const WindowOptions& options) {
  const std::vector<std::int64_t> windows = WindowsOf(out.graph, "layers");
  std::int64_t window = 0;
  for (const std::int64_t candidate : windows) {
    if (candidate == 0 || candidate == window) continue;
    if (window != 0) {
      out.problems.push_back(
          fmt::format("layers have windows of {} and of {}, and a config has one", window, candidate));
      return;
    }
    window = candidate;
  }
  out.config["sliding_window"] = window > 0 ? json(window) : json();
  if (options.asked_for) {
    out.config["use_sliding_window"] = window > 0;
    const auto first = std::find_if(windows.begin(), windows.end(), [](std::int64_t w) { return w > 0; });
    out.config["max_window_layers"] = first - windows.begin();
  }
  if (options.asked_for || options.full_every > 0) {
    json types = json::array();
    for (const std::int64_t own : windows) types.push_back(own > 0 ? kSliding : kFull);
    out.config["layer_types"] = std::move(types);
  }
}

}  // namespace

Feature Windows(const WindowOptions& options) {
  std::vector<std::string_view> keys = {"sliding_window"};
  if (options.asked_for) keys.insert(keys.end(), {"use_sliding_window", "max_window_layers", "layer_types"});
  if (options.full_every > 0)
    keys.insert(keys.end(), {"layer_types", "sliding_window_pattern", "_sliding_window_pattern"});
  return {.keys = std::move(keys),
          .read = [options](Importing& in) { ReadWindows(in, options); },
          .write = [options](Exporting& out) { WriteWindows(out, options); }};
}

std::vector<std::int64_t> WindowsOf(const GraphView& view, std::string_view stack) {
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < view.Layers(stack); ++layer) {
    const graph::Node* core = view.FindInLayer(stack, layer, "attention");
    windows.push_back(core == nullptr ? 0 : core->attributes.Int("window", 0));
  }
  return windows;
}

std::vector<KeyRow> LlamaSizes() {
  return {
      {.key = "hidden_size",
       .is = Is::kCount,
       .initial = 4096,
       .to = {"D"},
       .from = DimOf("embedding.tokens", 1)},
      {.key = "num_hidden_layers", .is = Is::kCount, .initial = 32, .to = {"L"}, .from = LayersOf("layers")},
      {.key = "num_attention_heads",
       .is = Is::kCount,
       .initial = 32,
       .to = {"H"},
       .from = InputDim("layers.0.attention.core", 0, 2)},
      {.key = "num_key_value_heads",
       .is = Is::kCount,
       .initial = "H",
       .to = {"K"},
       .from = InputDim("layers.0.attention.core", 1, 2)},
      {.key = "head_dim",
       .is = Is::kCount,
       .initial = "D//H",
       .to = {"E"},
       .from = InputDim("layers.0.attention.core", 0, 3)},
      {.key = "intermediate_size",
       .is = Is::kCount,
       .initial = 11008,
       .to = {"F"},
       .from = InputDim("layers.0.mlp.fc2", 0, 2)},
      {.key = "vocab_size",
       .is = Is::kCount,
       .initial = 32000,
       .to = {"V"},
       .from = DimOf("embedding.tokens", 0)},
      {.key = "hidden_act",
       .is = Is::kAct,
       .initial = "silu",
       .to = {"block/mlp/activation/act"},
       .from = ActOf("layers.0.mlp.activation")},
      {.key = "attention_dropout",
       .is = Is::kIgnored,
       .note = "the recipe has no dropout; steps.core = { dropout = … } in [block.attention] sets one"}};
}

KeyRow Epsilon(std::string_view key, double initial, const std::vector<std::string_view>& places) {
  return {.key = key,
          .is = Is::kNumber,
          .initial = initial,
          .to = places,
          .from = AttributeOf("final_norm", "epsilon")};
}

KeyRow AttentionBias() {
  return {.key = "attention_bias",
          .is = Is::kFlag,
          .initial = false,
          .to = {"block/attention/qkv/bias", "block/attention/proj/bias"},
          .from = HasParameter("layers.0.attention.proj.bias")};
}

KeyRow NoBias(std::string_view key) {
  return {.key = key, .is = Is::kUnread, .initial = false, .note = "the family has no such biases"};
}

KeyRow Count(std::string_view key, json initial, std::string_view to, Place from) {
  return {.key = key, .is = Is::kCount, .initial = std::move(initial), .to = {to}, .from = from};
}

KeyRow Act(std::string_view key, std::string_view initial, const std::vector<std::string_view>& places,
           std::string_view node) {
  return {.key = key, .is = Is::kAct, .initial = initial, .to = places, .from = ActOf(node)};
}

KeyRow Dropout(std::string_view key) {
  return {.key = key, .is = Is::kIgnored, .note = "the recipe has no dropout"};
}

Feature HeadWidth(std::string_view width_key, std::string_view heads_key) {
  return {.keys = {},
          .read =
              [=](Importing& in) {
                const auto width = in.draft.Dim("D"), heads = in.draft.Dim("H");
                if (!width || !heads) return;  // reported
                if (*width % *heads != 0)
                  return in.Problem(fmt::format("{} = {}: it is no multiple of {} = {}", width_key, *width,
                                                heads_key, *heads));
                in.draft.SetDim("E", *width / *heads);
              },
          .write = [](Exporting&) {}};
}

std::vector<KeyRow> OldSizes(const OldDefaults& defaults) {
  constexpr std::string_view kSummary = "of classifiers";
  std::vector<KeyRow> rows = {
      Count("n_embd", defaults.width, "D", DimOf("embedding.tokens", 1)),
      Count("n_layer", defaults.layers, "L", LayersOf("layers")),
      Count("n_head", defaults.heads, "H", InputDim("layers.0.attention.core", 0, 2)),
      Count("n_inner", "4*D", "F", InputDim("layers.0.mlp.fc2", 0, 2)),
      Count("vocab_size", defaults.vocab, "V", DimOf("embedding.tokens", 0)),
      Act("activation_function", defaults.act, {defaults.act_place}, "layers.0.mlp.activation"),
      Dropout("attn_pdrop"),
      Dropout("embd_pdrop"),
      Dropout("resid_pdrop")};
  for (const std::string_view key : {"summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                                     "summary_type", "summary_use_proj"})
    rows.push_back({.key = key, .is = Is::kIgnored, .note = kSummary});
  return rows;
}

std::string Decimal(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::vector<WeightRow> WithBiases(const std::vector<std::pair<std::string, std::string>>& modules) {
  std::vector<WeightRow> rows;
  for (const auto& [ours, theirs] : modules) {
    for (const char* kind : {".weight", ".bias"}) rows.push_back(Same(ours + kind, theirs + kind));
  }
  return rows;
}

std::vector<KeyRow> WithoutKeys(std::vector<KeyRow> rows, const std::vector<std::string_view>& keys) {
  std::erase_if(
      rows, [&](const KeyRow& row) { return std::find(keys.begin(), keys.end(), row.key) != keys.end(); });
  return rows;
}

WeightRow Same(std::string ours, std::string theirs) {
  return {.ours = std::move(ours), .theirs = {std::move(theirs)}};
}

std::vector<WeightRow> LlamaWeights(const std::string& prefix, const std::string& head) {
  const std::string layer = prefix + "layers.{l}.";
  std::vector<WeightRow> rows = {
      Same("embedding.tokens", prefix + "embed_tokens.weight"),
      Same("final_norm.weight", prefix + "norm.weight"), Same("head.weight", head),
      Same("layers.{l}.attention.norm.weight", layer + "input_layernorm.weight"),
      Same("layers.{l}.mlp.norm.weight", layer + "post_attention_layernorm.weight")};
  for (const std::string_view kind : {"weight", "bias"}) {
    const auto theirs = [&](std::string_view module) { return fmt::format("{}{}.{}", layer, module, kind); };
    const auto ours = [&](std::string_view step) { return fmt::format("layers.{{l}}.{}.{}", step, kind); };
    rows.push_back(
        {.ours = ours("attention.qkv"),
         .theirs = {theirs("self_attn.q_proj"), theirs("self_attn.k_proj"), theirs("self_attn.v_proj")},
         .how = How::kQkv});
    rows.push_back(Same(ours("attention.proj"), theirs("self_attn.o_proj")));
    rows.push_back({.ours = ours("mlp.fc1"),
                    .theirs = {theirs("mlp.gate_proj"), theirs("mlp.up_proj")},
                    .how = How::kStacked});
    rows.push_back(Same(ours("mlp.fc2"), theirs("mlp.down_proj")));
  }
  return rows;
}

std::vector<WeightRow> WithoutMlp(std::vector<WeightRow> rows) {
  return Without(std::move(rows), {"layers.{l}.mlp.fc1.weight", "layers.{l}.mlp.fc1.bias",
                                   "layers.{l}.mlp.fc2.weight", "layers.{l}.mlp.fc2.bias"});
}

std::vector<WeightRow> Without(std::vector<WeightRow> rows, const std::vector<std::string>& ours) {
  rows.erase(std::remove_if(rows.begin(), rows.end(),
                            [&](const WeightRow& row) {
                              return std::find(ours.begin(), ours.end(), row.ours) != ours.end();
                            }),
             rows.end());
  return rows;
}

}  // namespace engine::hf

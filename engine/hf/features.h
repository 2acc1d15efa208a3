// What several families have in common beyond single keys: rotary positions, windows, tied heads; and the rows of Llama and
// its kin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/hf/family_def.h"

namespace engine::hf {

// max_position_embeddings, and the rotary table's keys in both forms: rope_parameters of transformers 5, and rope_theta,
// rope_scaling and partial_rotary_factor of those before it, which is written.
struct RopeOptions {
  double theta = 1e4;             // where the file says none
  double partial = 1;             // share of a head's features that is rotated, likewise
  std::int64_t positions = 2048;  // max_position_embeddings, likewise
  bool blocks_say_width = false;  // the blocks have a width of their own, which is to be set in any case
  std::string_view theta_key = "rope_theta";
  std::string_view partial_key = "partial_rotary_factor";
  bool whole = false;       // all features are rotated: a file that says otherwise is refused
  bool long_names = false;  // Phi-3: "su" and "yarn" are old names of longrope
  std::string_view table = "rope";
  std::string_view stack = "layers";
  std::string_view head = "E";                     // the dim whose features are rotated
  std::vector<std::string_view> more_tables = {};  // that are to be the same
};
Feature Rope(const RopeOptions& options);

// One table of [model.rotary], from keys as those of rope_parameters. `theta` and `partial`: where they say none.
void ReadRotaryTable(ConfigKeys& keys, Importing& in, const RopeOptions& options, std::int64_t positions,
                     std::optional<double> original);

// How layer `layer` of a stack rotates, or nothing where it does not.
struct Rotation {
  const graph::Attributes* attributes;
  std::int64_t head;
};
std::optional<Rotation> RotationOfLayer(const GraphView& graph, std::string_view stack, std::int64_t layer);
// The longest sequence that a recipe speaks of.
std::int64_t LongestSequence(const recipe::Recipe& recipe);
// As rope_scaling has it; null where the frequencies are plain. A scaling that no config has is a problem.
nlohmann::json RopeScalingOf(const Rotation& rotation, Exporting& out);

// tie_word_embeddings. `blocks_tied`: whether the blocks' head is the table of tokens.
Feature Tied(bool initial, bool blocks_tied, std::string_view head = "lm_head.weight");

// Windows of attention: sliding_window, and which layers have it.
struct WindowOptions {
  std::int64_t initial = 0;  // sliding_window where the file leaves it out; 0: none
  bool asked_for =
      false;           // it counts only with use_sliding_window, on layers from max_window_layers on (Qwen)
  int full_every = 0;  // every so many layers, the last has none (Gemma); 0: all have it
  std::int64_t max_window_layers = 28;
  bool blocks_cycle = false;                             // the blocks' core reads $window
  std::string_view tables_full = {}, tables_local = {};  // rotary tables by layer, where they differ
};
Feature Windows(const WindowOptions& options);
// The windows of a stack's layers, 0: none.
std::vector<std::int64_t> WindowsOf(const GraphView& graph, std::string_view stack);

// One row each: a whole number that is a dim of ours or, where `to` has a /, the place of one; an activation; a probability of
// dropout, which is not taken over.
KeyRow Count(std::string_view key, nlohmann::json initial, std::string_view to, Place from);
KeyRow Act(std::string_view key, std::string_view initial, const std::vector<std::string_view>& places,
           std::string_view node);
KeyRow Dropout(std::string_view key);
// Sets E = D/H, where no key says it. The names of the keys of D and H are for messages.
Feature HeadWidth(std::string_view width_key, std::string_view heads_key);
// The keys of GPT-2 and GPT-J: n_embd, n_layer, n_head, n_inner, …
struct OldDefaults {
  std::int64_t vocab, width, layers, heads;
  std::string_view act;
  std::string_view act_place = "block/mlp/activation/act";
};
std::vector<KeyRow> OldSizes(const OldDefaults& defaults);
// "1e-05", as TOML has a number that is no whole one.
std::string Decimal(double value);

// Llama's sizes and keys, with its defaults; epsilons are set at `norms` ("main/final_norm", "block/attention/norm").
std::vector<KeyRow> LlamaSizes();
KeyRow Epsilon(std::string_view key, double initial, const std::vector<std::string_view>& places);
// attention_bias: of queries, keys, values and the product behind attention.
KeyRow AttentionBias();
// A key that some files have and that the family's classes do not read.
KeyRow NoBias(std::string_view key);
// Its weights, each name behind `prefix` ("model.").
std::vector<WeightRow> LlamaWeights(const std::string& prefix = "model.",
                                    const std::string& head = "lm_head.weight");
WeightRow Same(std::string ours, std::string theirs);
// A row for the weight of each of these (ours, theirs), and one for its bias.
std::vector<WeightRow> WithBiases(const std::vector<std::pair<std::string, std::string>>& modules);
// Rows of keys that are not these.
std::vector<KeyRow> WithoutKeys(std::vector<KeyRow> rows, const std::vector<std::string_view>& keys);
// Those of Llama but for its feed-forward parts' products.
std::vector<WeightRow> WithoutMlp(std::vector<WeightRow> rows);
// Rows of `rows` whose parameter is not called so.
std::vector<WeightRow> Without(std::vector<WeightRow> rows, const std::vector<std::string>& ours);

// Experts in place of feed-forward parts (expert_features.cpp): steps `router` and `experts` of block `block`, the dims X of their
// number, T of how many a token goes to, and F of their width.
struct ExpertOptions {
  std::vector<std::string_view> count_keys = {"num_experts", "num_local_experts"};  // the first is written
  std::int64_t count = 8, top = 2;
  std::string_view width_key = "moe_intermediate_size";
  std::int64_t width = 1408;
  bool says_normalize = true;  // norm_topk_prob, by default false
  double aux_loss = 0.001;     // router_aux_loss_coef
  // Layers of two kinds, by decoder_sparse_step and mlp_only_layers: dense ones have a feed-forward part of intermediate_size.
  bool mixed = false;
  std::int64_t dense_width = 0;
  std::vector<std::string_view> act_places = {"block/mlp/experts/act"};
};
Feature Experts(const ExpertOptions& options);
// The weight of a router's loss in the objective, under `key`, of block `block`.
Feature AuxLoss(std::string_view key, double initial, std::string_view block = "mlp");
// The first layer of a stack that has experts: "layers.3.mlp."; empty: none has.
std::string FirstExperts(const GraphView& graph, std::string_view stack = "layers");
// Of a router and of experts, by their names but for ".weight"; those of an expert's parts stand behind its number.
std::vector<WeightRow> ExpertWeights(const std::string& router, const std::string& experts,
                                     const std::string& gate = "gate_proj", const std::string& up = "up_proj",
                                     const std::string& down = "down_proj");
// The same of all experts in one tensor, as transformers 5 holds them in memory.
std::vector<WeightRow> FusedExpertWeights(const std::string& router, const std::string& experts);

}  // namespace engine::hf

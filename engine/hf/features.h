// What several families have in common beyond single keys: rotary positions, windows, tied heads; and the rows of Llama and
// its kin.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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
// Rows of `rows` whose parameter is not called so.
std::vector<WeightRow> Without(std::vector<WeightRow> rows, const std::vector<std::string>& ours);

}  // namespace engine::hf

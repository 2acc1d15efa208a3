// SHAPE of `engine doctor --attention SHAPE`: one attention in text, and its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/status.h"
#include "engine/graph/op.h"

namespace engine::cli {

// B samples of S queries and T keys; H heads, K kv heads, E elements of a head of queries and keys, U of one of values.
struct AskedAttention {
  std::string text;  // as it was written
  std::int64_t batch = 1;
  std::int64_t length = 0;      // S
  std::int64_t keys = 0;        // T; more than S under a causal mask: the queries are the last
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // K
  std::int64_t head = 0;        // E
  std::int64_t value_head = 0;  // U
  bool causal = true;           // or no mask
  std::int64_t window = 0;      // keys that a query sees; 0: all before it
  double softcap = 0;           // 0: none
  double dropout = 0;
  bool alibi = false;
  std::int64_t distance = 0;  // of biases by distance, up to the farthest of its own; 0: none
  std::int64_t pairs = 0;     // places whose pairs have a bias each; 0: none
  bool sinks = false;
  bool packed = false;                  // q, k and v are one tensor [B, S, K, H/K + 2, E]
  DType dtype = DType::kBF16;           // or fp16
  std::vector<std::int64_t> documents;  // lengths that fill S, the same in each sample; empty: none
};

// The text of help on SHAPE: an example, and the keys that the example leaves out.
std::string AttentionShapeHelp();

// Error: what is wrong, and what would be right.
absl::StatusOr<AskedAttention> ParseAttentionShape(std::string_view text);

// Pairs of a query and a key that it sees, of one head of one sample: half of S·T under a causal mask.
double UnmaskedPairs(const AskedAttention& shape);

// Of all products over these pairs: two of the forward pass, five of the backward pass, of which one makes the scores again.
double AttentionFlops(const AskedAttention& shape, bool backward);

// One launch of it. `positions` are those of a query in the sequence, [first, first + S).
struct AttentionLaunch {
  const graph::OpDef* op = nullptr;
  graph::Attributes attributes;
  std::vector<graph::TensorType> inputs, outputs;
  std::int64_t first_position = 0;
};
absl::StatusOr<AttentionLaunch> AttentionLaunchOf(const AskedAttention& shape, bool backward);

}  // namespace engine::cli

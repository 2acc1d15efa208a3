// The decoder family: recipe [model] → logical forward graph of one microbatch. GPT-2, Llama and Mistral are
// knobs of this one model (structure: Megatron-LM's pre-norm transformer; parameter names are what
// checkpoints hold).
//
//   x = E[tokens] (+ P[positions]) → dropout
//   per block: x += dropout(proj(attention(qkv(norm(x)))))
//              x += dropout(fc2(activation(fc1(norm(x)))))
//   logits = head(final_norm(x)); loss = Σ cross entropy
//
// Parameters, with J = heads/kv_heads + 2 rows of heads per kv group:
//
//   embedding.tokens                   [V, D]
//   embedding.positions                [max_positions, D]            learned positions
//   layers.N.attention.norm.weight     [D]                           .norm.bias   [D]
//   layers.N.attention.qkv.weight      [K, J, E, D]                  .qkv.bias    [K, J, E]
//   layers.N.attention.proj.weight     [D, H, E]                     .proj.bias   [D]
//   layers.N.mlp.norm.weight           [D]                           .norm.bias   [D]
//   layers.N.mlp.fc1.weight            [F, D], gated [2, F, D]       .fc1.bias    [F], gated [2, F]
//   layers.N.mlp.fc2.weight            [D, F]                        .fc2.bias    [D]
//   final_norm.weight                  [D]                           .bias        [D]
//   head.weight                        [V, D]                        untied
#pragma once

#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

struct BuildOptions {
  std::int64_t batch = 1;       // samples of the microbatch, over all data-parallel ranks
  std::int64_t sequence = 1;    // tokens of a sample
  std::int64_t vocab_rows = 0;  // rows of the embedding and the head, padding included; ≥ model.vocab
  DType dtype = DType::kF32;    // of activations and weights
  bool dropout = true;          // false: as in evaluation
  double global_tokens = 1.0;   // of the global batch: the loss is a mean over them
};

inline constexpr const char* kTokens = "tokens";        // inputs, all [batch, sequence] int32
inline constexpr const char* kLabels = "labels";        // next tokens; < 0: not counted
inline constexpr const char* kPositions = "positions";  // 0 … sequence−1 in every row

// Forward nodes with the loss and the logits set. The model must have passed recipe validation.
graph::Graph BuildDecoder(const recipe::Recipe& recipe, const BuildOptions& options);

// Sum of the parameters' elements, padding excluded.
std::int64_t CountParameters(const graph::Graph& graph);

}  // namespace engine::model

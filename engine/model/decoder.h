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
#include "engine/model/build.h"
#include "engine/recipe/recipe.h"

namespace engine::model {

// Forward nodes with the loss and the logits set. The model must have passed recipe validation.
graph::Graph BuildDecoder(const recipe::Recipe& recipe, const BuildOptions& options);

}  // namespace engine::model

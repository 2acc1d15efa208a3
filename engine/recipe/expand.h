// The keys of a decoder → the text that they are short for. It lies below the models: an importer changes the text by its names.
//
//   x = E[tokens] (+ P[positions]) → dropout
//   per layer: x += dropout(proj(attention(qkv(norm(x)))))
//              x += dropout(fc2(activation(fc1(norm(x)))))
//   logits = head(final_norm(x)); loss = mean cross entropy
//
// (structure: Megatron-LM's pre-norm transformer). Parameters, with J = heads/kv_heads + 2 rows of heads per kv group:
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

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/document.h"
#include "engine/recipe/recipe.h"

namespace engine::recipe {

// As TOML: the keys of [model] and the tables [block.NAME]. The recipe is a decoder that has passed validation.
std::string Expand(const Recipe& recipe);

// The same as a text (recipe/text.h).
Node ExpandedText(const Recipe& recipe);

// Which keys of a recipe an attribute of one of these steps follows from, for those who point at what a graph does. An
// attribute `contract` stands for the widths that a product contracts.
struct ExpandedAttribute {
  std::string_view step;       // "core"
  std::string_view attribute;  // "window"
  std::string_view called;     // what messages call it
  std::vector<std::string_view> keys;
};
std::span<const ExpandedAttribute> ExpandedAttributes();

}  // namespace engine::recipe

// The model of a script as text, where flags ask for what the keys of a decoder do not say: the steps that the keys are short
// for (recipe/expand.h), changed by their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::import {

struct MegatronModelChanges {
  std::vector<std::string> flags;       // that ask for the changes; empty: the keys say all
  bool qk_norms = false;                // of each head of queries and keys, before they are rotated
  bool gain_from_one = false;           // norms scale by 1 + w
  bool qkv_bias = false;                // also where the other projections have none
  bool quick_geglu = false;             // in place of the keys' activation
  bool sinks = false;                   // one more score a head
  std::optional<double> embedding_std;  // of the tables of tokens and positions
  std::string rotary;                   // more keys of the rotary table: "width = 16"
  std::vector<std::int64_t> windows;    // that layers take in turn; empty: the keys' in all
  std::vector<bool> rotated;  // whether layers, in turn, rotate queries and keys; empty: as the keys say
  std::int64_t further_tokens =
      0;                      // that are predicted behind the next one (DeepSeek-V3's MTP; arXiv:2412.19437)
  double further_weight = 0;  // of the loss of each
  std::vector<std::string> groups;  // tables [[optimizer.group]], which go with keys and with steps
};

struct MegatronModelText {
  std::string model;   // lines of [model]
  std::string blocks;  // the tables behind it
};

// Of a recipe whose keys passed validation.
MegatronModelText TextOfMegatronModel(const recipe::Recipe& decoder, const MegatronModelChanges& changes);

}  // namespace engine::import

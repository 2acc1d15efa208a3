// The model of a script as text, where flags ask for what the keys of a decoder do not say: the steps that the keys are short
// for (recipe/expand.h), changed by their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/recipe/recipe.h"

namespace engine::import {

// Experts in the place of feed-forward parts.
struct MegatronExperts {
  std::int64_t count = 0;    // 0: there are none
  std::int64_t hidden = 0;   // width of one; 0: as a dense feed-forward part's
  std::int64_t shared = 0;   // width of one that all tokens share; 0: there is none
  bool shared_gate = false;  // its result is multiplied by a sigmoid, one number a token
  std::string route;         // more keys of the step route: "top_k = 2, aux_loss = 0.01"
  std::string experts;       // more keys of the step experts; may be empty
  std::vector<bool> layers;  // which layers have experts; empty: all
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
struct MegatronLatents {
  std::int64_t kv = 0;                  // width of the latent of keys and values; 0: attention is another one
  std::int64_t q = 0;                   // of the latent of queries; 0: they are made of the stream
  std::int64_t plain = 0, rotated = 0;  // features of a head's queries and keys
  std::int64_t value = 0;               // features of a head's values
  bool norms = false;                   // of the latents
  std::optional<double> scale;          // of scores; nullopt: 1 / √(plain + rotated)
};

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
  MegatronExperts experts;
  MegatronLatents latents;
  std::vector<std::string> groups;  // tables [[optimizer.group]], which go with keys and with steps
};

struct MegatronModelText {
  std::string model;   // lines of [model]
  std::string blocks;  // the tables behind it
};

// Of a recipe whose keys passed validation.
MegatronModelText TextOfMegatronModel(const recipe::Recipe& decoder, const MegatronModelChanges& changes);

}  // namespace engine::import

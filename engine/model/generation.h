// Graphs of the steps of generation, made of a model's evaluation graph.
#pragma once

#include <cstdint>

#include "engine/base/status.h"
#include "engine/graph/graph.h"

namespace engine::model {

// Inputs that generation adds: [B] int32, the slot of each sequence, counted from the first that the rank of the sample has; and [B, R]
// int32, the tokens whose logits are wanted.
inline constexpr const char* kCacheSlots = "cache_slots";
inline constexpr const char* kWantedTokens = "wanted_tokens";
// And [B] f32, by which logits are divided before a token is drawn, above 0.
inline constexpr const char* kTemperatures = "temperatures";
// Of so many of the largest logits is told (ops/top_logits.cpp); of fewer, where the vocabulary has fewer.
inline constexpr std::int64_t kTopLogits = 128;

struct GenerationStep {
  bool begins = false;        // prefill: the sequences begin with these tokens; else decode
  std::int64_t slots = 1;     // sequences that the caches hold
  std::int64_t context = 1;   // tokens that a sequence has at most
  std::int64_t wanted = 1;    // R: of each sequence, logits of so many tokens
  bool narrow_cache = false;  // caches are e4m3, whatever is computed in
};

// What `evaluate` computes of the logits, for B sequences of S more tokens each, as its inputs are [B, S]. Each causal
// attention keeps its keys and values in two states, "NAME.keys" and "NAME.values" [slots, rows, K, E], of as many rows as
// the context has tokens, or as its window has, if that is less. Attention of latents (latent_attention.h) keeps these instead,
// and of keys what heads share: "NAME.latents" [slots, rows, C] and "NAME.shared" [slots, rows, 1, R].
//   prefill: the sequences begin, at position 0: attention is that of `evaluate`, and what it reads goes to the caches too.
//   decode:  they go on from what the caches hold, each at its own position (ops/cached_attention.cpp,
//            ops/cached_latent_attention.cpp).
// Logits are [B, R, V] of the tokens of kWantedTokens in prefill, and [B, 1, V] in decode; of each sample's last ones
// Graph::top_logits tells the largest. Inputs but tokens and positions are left
// out if the logits do not need them. `whole` is the evaluation graph of a sequence as long as the context, whose steps `evaluate`
// must have, but for the number of tokens. Unimplemented, with what stands in the way: a model whose tokens see later ones, or
// that mixes tokens otherwise than by causal attention.
absl::StatusOr<graph::Graph> ForGeneration(const graph::Graph& evaluate, const graph::Graph& whole,
                                           const GenerationStep& step);

}  // namespace engine::model

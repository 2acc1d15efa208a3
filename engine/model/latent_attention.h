// Attention whose keys and values are made of latents: multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
#pragma once

#include <cstdint>
#include <optional>

#include "engine/graph/graph.h"

namespace engine::model {

// Values of the graph, and where the parts of a key lie in it, and so in a query.
struct LatentAttention {
  graph::ValueId latent = graph::kNoValue;        // [B, S, C], of which keys and values are made
  graph::ValueId shared = graph::kNoValue;        // [B, S, 1, R], the part of keys that all heads share
  graph::ValueId key_weight = graph::kNoValue;    // [H, N, C], of the other part of keys
  graph::ValueId value_weight = graph::kNoValue;  // [H, U, C]
  std::int64_t first_shared = 0, first_own = 0;   // of R and N elements
};

// How an attention can go without its keys and values, where it can: each head has its own, values are one linear step of a
// latent without a bias, and keys are a join of another one of it and of one part that heads share, in any order; and latents with
// shared parts are narrower than keys and values. Nothing else may bend scores: no caps, sinks or biases. Nothing, where the
// attention is another.
std::optional<LatentAttention> FindLatentAttention(const graph::Graph& graph, const graph::Node& attention);

}  // namespace engine::model

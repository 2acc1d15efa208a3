// The gain of a norm.
#pragma once

#include "engine/graph/graph.h"

namespace engine::graph {

// Attribute gain_offset of the norm ops: what is added to γ before the norm multiplies by it; 0 where there is none. With
// 1, the weights are what the gain is more than 1 (Gemma Team, arXiv:2403.08295; Megatron-LM's layernorm1p).
inline constexpr std::string_view kGainOffset = "gain_offset";
inline double GainOffset(const Attributes& attributes) {
  return attributes.Has(kGainOffset) ? attributes.Float(kGainOffset) : 0.0;
}

}  // namespace engine::graph

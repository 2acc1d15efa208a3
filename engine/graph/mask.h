// What attention's mask says.
#pragma once

#include "engine/graph/graph.h"

namespace engine::graph {

// Attribute mask of the attention ops: "causal", which is also meant where there is none, leaves out the keys behind the
// query's position; "none" leaves out no key.
inline bool IsCausal(const Attributes& attributes) {
  return !attributes.Has("mask") || attributes.String("mask") == "causal";
}

// Whether attention depends on the positions of its queries: its mask does, and so do the draws of dropout and biases of
// distances and of pairs (attributes distance and pairs).
inline bool ReadsPositions(const Attributes& attributes) {
  return IsCausal(attributes) || attributes.Float("dropout", 0) > 0 || attributes.Int("distance", 0) > 0 ||
         attributes.Int("pairs", 0) > 0;
}

}  // namespace engine::graph

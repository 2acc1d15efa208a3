// Which keys a query of attention may see.
#pragma once

#include "engine/graph/graph.h"

namespace engine::graph {

// Attribute mask of the attention ops: "causal", which is also meant where there is none, leaves out the keys behind the
// query's position; "none" leaves out no key.
inline bool IsCausal(const Attributes& attributes) {
  return !attributes.Has("mask") || attributes.String("mask") == "causal";
}

}  // namespace engine::graph

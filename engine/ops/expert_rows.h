// Placement of rows (graph/rows.h), which the ops on them share.
#pragma once

#include "engine/graph/rows.h"
#include "engine/ops/common.h"

namespace engine::ops {

using graph::kRowAlignment;
using graph::RowBound;

// Whether the first of an expert's matrices has a gate and an up projection.
inline bool IsGated(const Attributes& attributes) { return attributes.Int("gated") != 0; }

// Whether every rank of the axis needs all tokens: where it splits experts, or the features of their matrices, which
// attribute features says that they have.
inline bool WholeTokens(const Attributes& attributes, const AxisRule& rule) {
  return rule.parameters.Has(Dim::kExpert) ||
         (rule.parameters.Has(Dim::kFeature) && attributes.Int("features", 0) != 0);
}

}  // namespace engine::ops

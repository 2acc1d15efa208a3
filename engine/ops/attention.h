// Which attention needs the positions of its queries (ops/attention.cpp).
#pragma once

#include "engine/graph/op.h"

namespace engine::ops {

// Whether attention of these attributes depends on positions: its mask does, and so do the draws of dropout.
bool ReadsPositions(const graph::Attributes& attributes);

// Whether the inputs of attention, or of its gradient, have positions: i32 behind the values, where all else is of reals.
bool HasPositions(graph::TypeSpan inputs);

}  // namespace engine::ops

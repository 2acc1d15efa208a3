// The FP8 pass: the products of every transformer layer take 8-bit operands, quantised once each.
//
// Quantised are a linear's input, its weight (once an iteration, in the begin segment) and its output's
// gradient; the head, attention, norms, activations and the residual stream stay in 16 bits, and so do
// evaluation's graphs. Gradients of biases ride along with the quantisation of the gradient that they sum.
#pragma once

#include <string>

#include "engine/plan/placements.h"

namespace engine::plan {

// gradient_format: "e4m3" or "e5m2", of output gradients; all else is e4m3. Linears with a dim that is no
// multiple of 16 stay as they are.
void QuantizeLinears(std::string_view gradient_format, std::int32_t layers, LocalGraph* graph);

}  // namespace engine::plan

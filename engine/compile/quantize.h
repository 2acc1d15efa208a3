// The FP8 pass: the products of every transformer layer take 8-bit operands, quantised once each.
//
// Quantised are a linear's input, its weight (once an iteration, in the begin segment) and its output's
// gradient; the head unless asked for, attention, norms, activations and the residual stream stay in 16 bits,
// and so do evaluation's graphs. Gradients of biases ride along with the quantisation of the gradient that
// they sum.
#pragma once

#include <string>

#include "engine/compile/placements.h"

namespace engine::compile {

struct Fp8Options {
  std::string gradients;  // "e4m3", "e5m2": format of output gradients; all else is e4m3. Empty: no FP8
  bool current = false;   // a tensor's scale is that of its own largest value, not of the last iteration's
  bool head = false;
};

// The products of blocks (ops::Fp8Products), but for those with a dim that is no multiple of 16. `logical`: what the local
// graph was placed from.
void QuantizeLinears(const Fp8Options& options, const graph::Graph& logical, LocalGraph* graph);

// The head that the fusion pass has made one op. Only if options.head.
void QuantizeHead(const Fp8Options& options, const graph::Graph& logical, LocalGraph* graph);

}  // namespace engine::compile

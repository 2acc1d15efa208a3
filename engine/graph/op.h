// What any op must answer. One OpDef per op, defined in engine/ops/<family>.cpp, listed in
// engine/ops/registry.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/graph/graph.h"
#include "engine/graph/placement.h"

namespace engine::graph {

// Ops that are alike to those who do not care which one it is: cost, recomputation, the order of halves.
enum class Family : std::uint8_t {
  kOther,
  kProduct,
  kHead,  // the products of head and loss with those of their gradients, in one
  kAttention,
  kNorm,
  kActivation,
};

// What one execution of an op does.
struct Work {
  // All arithmetic: multiply-adds count 2; attention counts only unmasked pairs (causal half, inside its
  // window), of the rank that has most of them.
  double flops = 0;
  double bytes = 0;  // read + written once each
  // The part of `flops` that is matrix products of the op's formula: what FLOPs of a model mean in the
  // literature. Attention counts the mean rank's pairs. 0: no products.
  double product_flops = 0;
  // Of a product: elements of its result, and how many terms each is the sum of.
  double results = 0, depth = 0;
  // Of attention: queries of all samples and heads, and elements of a head.
  double queries = 0, head = 0;
  bool backward = false;  // of attention: 5 products for each pair instead of 2
};

// One lawful combination of placements along one mesh axis.
struct Signature {
  std::vector<Placement> inputs;
  std::vector<Placement> outputs;
  // The axis brings nothing here (work is repeated on every rank); taken only where no other signature is
  // possible.
  bool fallback = false;
};

using TypeSpan = std::span<const TensorType>;

// Emits the nodes that compute the gradients of `node`'s inputs.
struct GradientContext {
  Graph* graph;
  const Node node;     // a copy: emitting may move the graph's nodes
  ValueIds d_outputs;  // kNoValue where nothing depends on that output
  // For input i of the node: the accumulator that receives its gradient if it is a trained parameter, else kNoValue.
  ValueIds accumulators;
};

struct OpDef {
  std::string_view name;
  // Types of the outputs, or why the inputs are not acceptable.
  absl::StatusOr<std::vector<TensorType>> (*infer)(TypeSpan inputs, const Attributes& attributes) = nullptr;
  Family family = Family::kOther;
  // Of one execution on tensors of these (local or logical) types.
  Work (*work)(TypeSpan inputs, TypeSpan outputs, const Attributes& attributes) = nullptr;
  // One entry per input: the gradient's value, or kNoValue (not differentiable, or added into its
  // accumulator). Null: the op has no gradient.
  ValueIds (*gradient)(GradientContext& context) = nullptr;
  // Lawful signatures along one axis, preferred first among equals. Where the rule says that
  // the axis splits dims of the op's weights, it offers only signatures that split them, or a fallback.
  std::vector<Signature> (*signatures)(TypeSpan inputs, const Attributes& attributes,
                                       const AxisRule& rule) = nullptr;
  // Bit i: output i can be added into what its buffer holds (gradients of parameters, the loss).
  std::uint32_t accumulates = 0;
  // The outputs are sums over the inputs' dim 0: of inputs that lie one behind the other along it, the
  // outputs are the sum of what each gives.
  bool sums_rows = false;
  // Inputs 0 and 1 may be exchanged.
  bool commutes = false;
  // Bit i: output i is a state that the op reads too, and lies where it lay.
  std::uint32_t moves = 0;
  // Output 0 may share the bytes of this input where the input dies here; -1: none.
  int in_place_input = -1;
  // Of a fused op: emits the plain nodes that it stands for, returns its outputs' values. Null: a plain op.
  ValueIds (*compose)(Graph* graph, const ValueIds& inputs, const Attributes& attributes) = nullptr;
};

}  // namespace engine::graph

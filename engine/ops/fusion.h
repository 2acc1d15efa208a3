// How the fusion pass (compile/fuse.h) finds the plain nodes that a fused op stands for.
//
// Which nodes they are, how they hang together, and what becomes of their inputs, outputs, sums and attributes follows
// from the op's composition (OpDef::compose). A row says what a composition does not: where the fused node runs, which
// tensor decides whether a device has a kernel, and what else has to hold.
//
// To add a fused op: its OpDef with its composition (ops/fused.h and .cpp, or ops/fp8.h and .cpp), its row in
// ops/fusion.cpp, its kernels. No pass changes. Always true of a match, and so in no row:
//   - a value that lies within the composition is read by no other node, and nothing adds to it;
//   - all nodes are of one chunk of the pipeline and, unless the row says otherwise, of one phase;
//   - what the fused node reads is made before it, and what it makes is read after it;
//   - it adds to exactly those of its outputs that OpDef::accumulates names; one that nobody reads, as the gradient of a frozen
//     gain, may be written instead;
//   - nodes that share an attribute have the same value of it; one that the composition itself gives is as given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/graph/op.h"

namespace engine::ops {

// When rows are tried: stage by stage, within a stage in the order of the list, each for all nodes before the next.
enum class FusionStage : std::uint8_t {
  kEveryDevice,  // whatever kernels there are, before products are quantised
  kFirst,        // before norms that run again are merged with their gradients (RepeatedNorm)
  kLast,
};

// A tensor of a composition, as an input or an output of its one node of an op.
struct TensorOf {
  enum class Side : std::uint8_t { kInput, kOutput };
  const graph::OpDef* op = nullptr;
  Side side = Side::kInput;
  std::size_t index = 0;
};
constexpr TensorOf InputOf(const graph::OpDef& op, std::size_t index) {
  return {&op, TensorOf::Side::kInput, index};
}
constexpr TensorOf OutputOf(const graph::OpDef& op, std::size_t index) {
  return {&op, TensorOf::Side::kOutput, index};
}

// A form of a fused op: with an optional input or output, or without.
struct FusionVariant {
  // Shapes of inputs on which the composition is built, once. Which nodes it has may depend on how many inputs there
  // are, not on their sizes.
  std::vector<Shape> inputs;
  graph::Attributes attributes = {};  // those that make this variant; the fused node gets them
  // Further attributes that make this variant, whatever they are: the fused node gets those of the nodes that it is
  // found by.
  graph::Attributes example = {};
};

// "Not where the only node that reads `tensor` is of op `reader`."
struct FusionException {
  TensorOf tensor;
  const graph::OpDef* reader = nullptr;
};

struct FusionRow {
  const graph::OpDef* op = nullptr;
  FusionStage stage = FusionStage::kFirst;
  // The composition; null: that of `op`. Where rows above this one find something in it, the graph will have their fused
  // ops by then: the members below name those.
  graph::ValueIds (*compose)(graph::Graph*, const graph::ValueIds&, const graph::Attributes&) = nullptr;
  std::vector<FusionVariant> variants = {};  // the first that matches is taken
  graph::Attributes example = {};            // further attributes that building the composition takes
  // The node in whose place the fused one runs, in its phase and unit.
  const graph::OpDef* at = nullptr;
  // The node whose name the fused one has, and whose attributes come first; null: `at`.
  const graph::OpDef* named_by = nullptr;
  // Of which DeviceProfile::fuses is asked; of no op in stage kEveryDevice.
  TensorOf asks = {};
  graph::Attributes where = {};            // attributes that the fused node must have
  std::optional<graph::Phase> phase = {};  // in which alone it is looked for
  bool across_phases = false;              // nodes may be of several phases
  bool same_unit = false;                  // nodes are of one unit, not only of one chunk
  bool without_gradients = false;          // only in graphs that have no backward pass
  FusionException except = {};
  // Inputs of the fused op that have one dim, where the variant has them: kernels that add a sum to a norm or sum a bias
  // take one row of columns for gain, shift and bias.
  std::vector<std::size_t> one_dim = {};
};

// All rows, in the order in which they are tried.
std::span<const FusionRow> FusionRows();

// What the rules that stay by hand are told. A norm that is run again for weight gradients alone
// (compile/fuse_norm.h):
struct RepeatedNorm {
  const graph::OpDef* norm;      // x, … → y, statistics
  const graph::OpDef* forward;   // what it was in the forward pass: → sum, y, the same statistics
  const graph::OpDef* gradient;  // its gradient, which makes y too with attribute again = 1
  const graph::OpDef* quantize;  // x, …, statistics, state → y quantised and transposed
  std::string_view gain_offset;  // attribute of both `norm` and `quantize`; the statistics hold the others
};
std::span<const RepeatedNorm> RepeatedNorms();

// Attention whose queries, keys and values are parts of one packed tensor (compile/fuse_attention.h).
struct PackedAttention {
  // `cut`: of the forward pass, packed, positions → queries, keys, values; of the backward pass their gradients,
  // positions → packed. With attribute rotary = 1 it turns queries and keys on the way.
  struct Way {
    const graph::OpDef* cut;
    const graph::OpDef* attention;  // on the parts
    const graph::OpDef*
        packed;  // attention on the packed tensor: the same, but not turned, without sinks and without biases
    const graph::OpDef* turn;  // turns the packed tensor in place
  };
  Way forward, backward;
};
std::span<const PackedAttention> PackedAttentions();

}  // namespace engine::ops

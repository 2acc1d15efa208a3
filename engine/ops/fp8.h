// FP8 products and quantisation (Micikevicius et al., arXiv:2209.05433; delayed and current scaling as
// NVIDIA's Transformer Engine has them). Graphs are never built of them; compile/quantize.h puts them into local
// graphs of recipes that compute in fp8. They approximate the ops that they stand for: compositions, of plain
// ops and quantize, say what they read and make and how it is placed, not which bits come out.
//
// Every quantised tensor has a state f32[8]:
//
//   [0] 1/scale   [4] scale   [5] largest absolute value of this iteration   [6] format (0 e4m3, 1 e5m2)
//
//   q = x · scale, rounded and held within the format's range. Its shape and placement are those of x.
//   qt is q transposed, its last `dims` dims (attribute) first in memory: products want both operands with
//     the contracted dim last. Its shape and placement are those of q.
//
// Delayed scaling: fp8_update turns the largest value into the next iteration's scale, which is one for all
// ranks that hold parts of the tensor: the update takes the largest value of all of them before.
// Current scaling: the state is made with the tensor, of the largest value of the rank's own part, and nothing
// is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/graph/op.h"

namespace engine::ops {

inline constexpr std::int64_t kScaleNumbers = 8;  // of a quantised tensor's state
// The state of a tensor that is quantised to this format, by this scale in a run's first iteration.
graph::StateSpec ScaleSpec(double start, DType format);

// x, state → q, qt[, d_bias]; d_bias: the sums of x over all but its last dims
extern const graph::OpDef kQuantize;
// x → q, qt, state[, d_bias]
extern const graph::OpDef kQuantizeCurrent;
// The same of rows of experts (graph/rows.h), of which those behind the last group are no part.
// x, groups, state → q, qt
extern const graph::OpDef kQuantizeRows;
// x, groups → q, qt, state
extern const graph::OpDef kQuantizeRowsCurrent;
// pre, state → q, qt of gelu(pre)
extern const graph::OpDef kGeluQuantize;
// x, state → q, qt of swiglu(x)
extern const graph::OpDef kSwigluQuantize;
// pre, dy, state → q, qt of gelu_grad(pre, dy)[, d_bias]
extern const graph::OpDef kGeluGradQuantize;
// x, dy, state → q, qt of swiglu_grad(x, dy)
extern const graph::OpDef kSwigluGradQuantize;
// x, branch, gamma, beta, state → sum, q, qt, mean, rstd
extern const graph::OpDef kAddLayerNormQuantize;
// x, branch, gamma, state → sum, q, qt, rstd
extern const graph::OpDef kAddRmsNormQuantize;
// dy, x, gamma, mean, rstd, residual, state → dx, q, qt, d_gamma, d_beta[, d_bias]
extern const graph::OpDef kLayerNormGradAddQuantize;
// dy, x, gamma, rstd, residual, state → dx, q, qt, d_gamma[, d_bias]
extern const graph::OpDef kRmsNormGradAddQuantize;

// x8, w8, state of x, state of w[, bias] → y
extern const graph::OpDef kLinearFp8;
// dy8, w8t, state of dy, state of w → dx
extern const graph::OpDef kLinearDgradFp8;
// dy8t, x8t, state of dy, state of x → dw
extern const graph::OpDef kLinearWgradFp8;

// Products of rows of experts (grouped_linear.cpp). w has one scale for all experts; its qt is [in…, E, out…] in memory, that
// of rows [elements…, R].
// x8, w8, state of x, state of w, groups → y
extern const graph::OpDef kGroupedLinearFp8;
// dy8, w8t, state of dy, state of w, groups → dx
extern const graph::OpDef kGroupedLinearDgradFp8;
// dy8t, x8t, state of dy, state of x, groups → dw
extern const graph::OpDef kGroupedLinearWgradFp8;

// The norm of x once more, with the statistics that it had, for weight gradients: no q.
// x, gamma, beta, mean, rstd, state → qt
extern const graph::OpDef kLayerNormQuantizeAgain;
// x, gamma, rstd, state → qt
extern const graph::OpDef kRmsNormQuantizeAgain;

// linear_cross_entropy on a quantised table: x and the logits' gradient (of attribute `format`) are quantised
// chunk by chunk, x by its chunk's largest value, the gradient by the largest that it can have.
// x, w8, w8t, state of w, labels[, b] → dx[, dw], loss[, db]
extern const graph::OpDef kLinearCrossEntropyFp8;

std::span<const graph::OpDef* const> AllFp8Ops();

// What the FP8 pass (compile/quantize.h) makes of a product.
struct Fp8Product {
  enum class Operand : std::uint8_t {
    kOther,  // is not quantised
    kInput,
    kWeight,
    kGradient,  // of a product's output
  };
  enum class Form : std::uint8_t { kPlain, kQuantized, kTransposed, kState };
  struct Taken {
    std::size_t input;  // of the plain op
    Form form;
  };
  const graph::OpDef* plain;
  const graph::OpDef* fp8;
  std::vector<Operand> operands;  // what the plain op's first inputs are
  std::vector<Taken> inputs;      // of the FP8 op; the plain op's inputs behind its operands follow
  // The FP8 op quantises a gradient of its own and has an attribute `format` for it.
  bool has_format = false;
  // Inputs and gradients are rows of experts, whose groups are the plain op's third input; a weight's first dim counts
  // experts.
  bool of_experts = false;
};
std::span<const Fp8Product> Fp8Products();

}  // namespace engine::ops

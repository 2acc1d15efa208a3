// Where products keep what in their scratch, linear_cross_entropy and the gradients of routers: the scratch rules and the
// launchers read the same.
#pragma once

#include <cstdint>

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

// Offsets in bytes, all multiples of 256; the products' workspace stands at 0.
struct LinearCrossEntropyLayout {
  std::int64_t chunk = 0;   // tokens whose logits exist at once
  std::int64_t logits = 0;  // [chunk, V], dtype of x
  std::int64_t losses = 0;  // [B·S] fp32
  // The partial sums of the bias's gradient where there is one [lines of MakeBiasGradGrid, V] fp32.
  std::int64_t d_bias = 0;
  std::int64_t bytes = 0;
};
LinearCrossEntropyLayout LayoutOf(const graph::TensorType& x, const graph::TensorType& w,
                                  const graph::Attributes& attributes);

// Of linear_cross_entropy_fp8: besides, the operands of one chunk in FP8, as they lie and transposed, and
// their states.
struct LinearCrossEntropyFp8Layout {
  LinearCrossEntropyLayout plain;
  std::int64_t x = 0;        // [chunk, D]
  std::int64_t xt = 0;       // [D, chunk]
  std::int64_t d = 0;        // [chunk, V], of the logits' gradient
  std::int64_t dt = 0;       // [V, chunk]
  std::int64_t x_state = 0;  // f32[8]
  std::int64_t d_state = 0;  // f32[8]
  std::int64_t bytes = 0;
};
LinearCrossEntropyFp8Layout Fp8LayoutOf(const graph::TensorType& x, const graph::TensorType& w,
                                        const graph::Attributes& attributes);

// Of the gradients of a router's linear layer (launch/router_linear.cpp), whose dy is fp32 beside 16-bit
// operands: dy is cut into two numbers of 16 bits, high + low. M tokens, O experts, I features.
// Offsets in bytes, all multiples of 256; the products' workspace stands at 0.
struct RouterLinearLayout {
  std::int64_t m = 0, out = 0, in = 0;  // M, O, I
  std::int64_t parts = 0;               // [M, 2, O] 16 bits: high and low parts of dy
  std::int64_t twice =
      0;  // dgrad: w two times, [2, O, I] 16 bits; wgrad: the parts' gradients, [2, O, I] fp32
  std::int64_t bytes = 0;
};
// Whether the gradient has such a dy. `operand`: w of linear_dgrad, x of linear_wgrad.
bool CutsGradient(const graph::TensorType& dy, const graph::TensorType& operand);
// Of linear_dgrad(dy, w) and linear_wgrad(dy, x), of which CutsGradient is true.
RouterLinearLayout LayoutOfRouterDgrad(const graph::TensorType& dy, const graph::TensorType& w,
                                       const graph::Attributes& attributes);
RouterLinearLayout LayoutOfRouterWgrad(const graph::TensorType& dy, const graph::TensorType& x,
                                       const graph::Attributes& attributes);

}  // namespace engine::backend::cuda

// Fused ops: what a device may carry out in one kernel. Graphs are never built of them; plan/fuse.h puts them
// into local graphs where the device has the kernel. Each gives its composition from plain ops, which is its
// specification.
#pragma once

#include <span>

#include "engine/graph/op.h"

namespace engine::ops {

// x, w, b → y, pre:  pre = linear(x, w, b); y = gelu(pre). Attributes of linear and gelu.
extern const graph::OpDef kLinearGelu;
// dy, w, pre → d_pre:  gelu_grad(pre, linear_dgrad(dy, w)).
extern const graph::OpDef kLinearDgradGelu;
// pre, dy → d_pre, y[, d_bias]:  gelu_grad(pre, dy) and gelu(pre), which the forward pass did not save; with
// attribute bias = 1 also bias_grad(d_pre).
extern const graph::OpDef kGeluGradAgain;
// x, dy → dx, y:  swiglu_grad(x, dy) and swiglu(x).
extern const graph::OpDef kSwigluGradAgain;
// x, branch, gamma, beta → sum, y, mean, rstd:  sum = x + branch; layer_norm(sum, gamma, beta).
extern const graph::OpDef kAddLayerNorm;
// x, branch, gamma → sum, y, rstd.
extern const graph::OpDef kAddRmsNorm;
// dy, x, gamma, mean, rstd, residual[, beta] → dx, d_gamma, d_beta[, d_bias][, y]:  dx = layer_norm_grad(…) +
// residual; with attribute bias = 1 also d_bias = bias_grad(dx); with again = 1 also y = layer_norm(x, gamma,
// beta), which the forward pass did not save.
extern const graph::OpDef kLayerNormGradAdd;
// dy, x, gamma, rstd, residual → dx, d_gamma[, d_bias][, y].
extern const graph::OpDef kRmsNormGradAdd;
// qkv[B, S, K, J, E], positions → qkv with queries and keys turned, in place:  qkv_split, packed again.
extern const graph::OpDef kRotary;
// d_qkv, positions → d_qkv turned back, in place.
extern const graph::OpDef kRotaryGrad;
// qkv[B, S, K, J, E], positions → o, lse:  attention(qkv_split(qkv)) without rotary.
extern const graph::OpDef kAttentionPacked;
// qkv, positions, o, lse, d_o → d_qkv:  qkv_merge(attention_grad(qkv_split(qkv), …)) without rotary.
extern const graph::OpDef kAttentionPackedGrad;
// x[B, S, D], w[V, D], labels[B, S] → d_x, d_w, loss:  the head, the loss and both gradients, a chunk of
// tokens at a time (attribute chunk), so that the logits of one chunk exist at once:  logits = linear(x, w);
// lse, target = cross_entropy(logits); loss += loss_sum(lse, target); d_logits = cross_entropy_grad(logits,
// loss_weight); d_x = linear_dgrad(d_logits, w); d_w += linear_wgrad(d_logits, x). Attributes in_dims,
// classes, scale, chunk.
extern const graph::OpDef kLinearCrossEntropy;

std::span<const graph::OpDef* const> AllFusedOps();

}  // namespace engine::ops

// Fused ops: what a device may carry out in one kernel. Graphs are never built of them; compile/fuse.h puts them
// into local graphs where the device has the kernel. Each gives its composition from plain ops, which is its
// specification, and by which it is found (ops/fusion.h).
#pragma once

#include <span>

#include "engine/graph/op.h"

namespace engine::ops {

// linear_gelu: x, w, b → y, pre.   Attributes of linear and gelu.
//   pre = linear(x, w, b)
//   y = gelu(pre)
extern const graph::OpDef kLinearGelu;

// linear_dgrad_gelu: dy, w, pre → d_pre
//   d_pre = gelu_grad(pre, linear_dgrad(dy, w))
extern const graph::OpDef kLinearDgradGelu;

// linear_add: x, w, c → y, in the place of c.   Attributes of linear.
//   y = c + linear(x, w)
extern const graph::OpDef kLinearAdd;

// linear_gated: x, w[, b] → y.   Attributes of linear, and of glu where the gate is not silu.
//   h = linear(x, w[, b]), which has a gate and an up projection
//   y = swiglu(h), or glu(h)                                       with attribute kind
extern const graph::OpDef kLinearGated;

// linear_residual: x, w, c[, b] → y, in the place of c.   Attributes of linear.
//   y = c + linear(x, w[, b])
extern const graph::OpDef kLinearResidual;

// norm_linear: x, w, gamma[, beta][, b] → y.   Attributes of the norm, linear, and gelu or linear_gated.
//   n = layer_norm(x, gamma, beta)                                 with attribute layer = 1; else n = rms_norm(x, gamma)
//   y = gelu(linear(n, w[, b]))                                    with attribute gelu = 1
//   y = linear_gated(n, w[, b])                                    with attribute gate = 1
//   y = linear(n, w[, b])                                          with neither
extern const graph::OpDef kNormLinear;

// linear_dgrad_add: dy, w, c → dx, in the place of c
//   dx = c + linear_dgrad(dy, w)
extern const graph::OpDef kLinearDgradAdd;

// gelu_grad_again: pre, dy → d_pre, y[, d_bias]
//   d_pre = gelu_grad(pre, dy)
//   y = gelu(pre), which the forward pass did not save
//   d_bias = bias_grad(d_pre)                                      with attribute bias = 1
extern const graph::OpDef kGeluGradAgain;

// swiglu_grad_again: x, dy → dx, y
//   dx = swiglu_grad(x, dy)
//   y = swiglu(x), which the forward pass did not save
extern const graph::OpDef kSwigluGradAgain;

// expert_activation_grad_again: h, weight, choice_of, dy → dh, d_weight, y
//   dh, d_weight = expert_activation_grad(h, weight, choice_of, dy)
//   y = expert_activation(h, weight, choice_of), which the forward pass did not save
extern const graph::OpDef kExpertActivationGradAgain;

// add_layer_norm: x, branch, gamma, beta → sum, y, mean, rstd
//   sum = x + branch
//   y, mean, rstd = layer_norm(sum, gamma, beta)
extern const graph::OpDef kAddLayerNorm;
// add_rms_norm: x, branch, gamma → sum, y, rstd.   The same with rms_norm.
extern const graph::OpDef kAddRmsNorm;

// add_dropout_layer_norm: x, branch, gamma, beta[, bias] → sum, y, mean, rstd.   Attributes of dropout and layer_norm.
//   sum = x + dropout(branch), or x + dropout(branch + bias)
//   y, mean, rstd = layer_norm(sum, gamma, beta)
extern const graph::OpDef kAddDropoutLayerNorm;
// add_dropout_rms_norm: x, branch, gamma → sum, y, rstd.   The same with rms_norm.
extern const graph::OpDef kAddDropoutRmsNorm;

// dropout_grad_bias: dy → dx, d_bias
//   dx = dropout_grad(dy)
//   d_bias = bias_grad(dx)
extern const graph::OpDef kDropoutGradBias;

// layer_norm_grad_add: dy, x, gamma, mean, rstd, residual[, beta] → dx, d_gamma, d_beta[, d_bias][, y]
//   dx, d_gamma, d_beta = layer_norm_grad(dy, x, gamma, mean, rstd), and dx += residual
//   d_bias = bias_grad(dx)                                         with attribute bias = 1
//   y = layer_norm(x, gamma, beta), which the forward pass did not save    with again = 1
extern const graph::OpDef kLayerNormGradAdd;
// rms_norm_grad_add: dy, x, gamma, rstd, residual → dx, d_gamma[, d_bias][, y].   The same with rms_norm.
extern const graph::OpDef kRmsNormGradAdd;

// rotary: qkv[B, S, K, J, E], positions → qkv with queries and keys turned, in place
//   qkv_split with attribute rotary, packed again
extern const graph::OpDef kRotary;
// rotary_grad: d_qkv, positions → d_qkv turned back, in place
extern const graph::OpDef kRotaryGrad;

// attention_packed: qkv[B, S, K, J, E], positions[, spans] → o, lse
//   o, lse = attention(qkv_split(qkv), positions[, spans]), without rotary
extern const graph::OpDef kAttentionPacked;
// attention_packed_grad: qkv, positions[, spans], o, lse, d_o → d_qkv
//   d_qkv = qkv_merge(attention_grad(qkv_split(qkv), …)), without rotary
extern const graph::OpDef kAttentionPackedGrad;

// linear_cross_entropy: x[B, S, D], w[V, D], labels[B, S][, b[V]] → d_x[, d_w], loss[, d_b].   Attributes in_dims,
// classes, scale, chunk, and smoothing and z_loss where the loss has them. The head, the loss and their gradients,
// `chunk` tokens at a time, so that only the logits of one chunk exist at once:
//   z = linear(x, w[, b])
//   s = scale(z)                                                   with attribute by; else s = z
//   logits = softcap(s)                                            with attribute cap; else logits = s
//   lse, target = cross_entropy(logits, labels)
//   loss += loss_sum(lse, target, labels)
//   d_logits = cross_entropy_grad(logits, labels, lse, loss_weight(labels))
//   d_s = softcap_grad(logits, d_logits)                           with attribute cap; else d_s = d_logits
//   d_z = scale(d_s)                                               with attribute by; else d_z = d_s
//   d_x = linear_dgrad(d_z, w)
//   d_w += linear_wgrad(d_z, x)                                    not with attribute frozen = 1
//   d_b += bias_grad(d_z)                                          with attribute bias = 1
extern const graph::OpDef kLinearCrossEntropy;

std::span<const graph::OpDef* const> AllFusedOps();

}  // namespace engine::ops

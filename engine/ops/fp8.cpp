// Costs: FLOPs of the products as in linear.cpp, a few per element for the rest; bytes of what is read and
// written.
#include "engine/ops/fp8.h"

#include <array>
#include <cmath>

#include "engine/ops/common.h"

namespace engine::ops {
namespace {

Cost OnePass(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {10.0 * Elements(inputs[0]), Bytes(inputs) + Bytes(outputs)};
}

// 2·M·N·K of operands [M, K] and [N, K].
Cost Product(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  return {2.0 * std::sqrt(Elements(inputs[0]) * Elements(inputs[1]) * Elements(outputs[0])),
          Bytes(inputs) + Bytes(outputs)};
}

// Head and its gradients: three products of tokens, classes and features.
Cost Head(TypeSpan inputs, TypeSpan outputs, const Attributes&) {
  const double features = static_cast<double>(inputs[1].shape[inputs[1].shape.rank() - 1]);
  return {6.0 * Elements(inputs[0]) * Elements(inputs[1]) / features, Bytes(inputs) + Bytes(outputs)};
}

}  // namespace

const OpDef kQuantize{.name = "quantize", .cost = OnePass, .accumulates = 0b100};
const OpDef kQuantizeCurrent{.name = "quantize_current", .cost = OnePass, .accumulates = 0b1000};
const OpDef kLayerNormQuantizeAgain{.name = "layer_norm_quantize_again", .cost = OnePass};
const OpDef kRmsNormQuantizeAgain{.name = "rms_norm_quantize_again", .cost = OnePass};
const OpDef kGeluQuantize{.name = "gelu_quantize", .cost = OnePass};
const OpDef kSwigluQuantize{.name = "swiglu_quantize", .cost = OnePass};
const OpDef kGeluGradQuantize{.name = "gelu_grad_quantize", .cost = OnePass, .accumulates = 0b100};
const OpDef kSwigluGradQuantize{.name = "swiglu_grad_quantize", .cost = OnePass};
const OpDef kAddLayerNormQuantize{.name = "add_layer_norm_quantize", .cost = OnePass};
const OpDef kAddRmsNormQuantize{.name = "add_rms_norm_quantize", .cost = OnePass};
const OpDef kLayerNormGradAddQuantize{
    .name = "layer_norm_grad_add_quantize", .cost = OnePass, .accumulates = 0b111000};
const OpDef kRmsNormGradAddQuantize{
    .name = "rms_norm_grad_add_quantize", .cost = OnePass, .accumulates = 0b11000};
const OpDef kLinearFp8{.name = "linear_fp8", .cost = Product};
const OpDef kLinearDgradFp8{.name = "linear_dgrad_fp8", .cost = Product};
const OpDef kLinearWgradFp8{.name = "linear_wgrad_fp8", .cost = Product, .accumulates = 1};
const OpDef kLinearCrossEntropyFp8{.name = "linear_cross_entropy_fp8", .cost = Head, .accumulates = 0b110};

std::span<const OpDef* const> AllFp8Ops() {
  static constexpr std::array kOps = {&kQuantize,
                                      &kQuantizeCurrent,
                                      &kLayerNormQuantizeAgain,
                                      &kRmsNormQuantizeAgain,
                                      &kGeluQuantize,
                                      &kSwigluQuantize,
                                      &kGeluGradQuantize,
                                      &kSwigluGradQuantize,
                                      &kAddLayerNormQuantize,
                                      &kAddRmsNormQuantize,
                                      &kLayerNormGradAddQuantize,
                                      &kRmsNormGradAddQuantize,
                                      &kLinearFp8,
                                      &kLinearDgradFp8,
                                      &kLinearWgradFp8,
                                      &kLinearCrossEntropyFp8};
  return kOps;
}

}  // namespace engine::ops

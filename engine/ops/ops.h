// The ops, by family. Letters: B batch, S sequence, D model, H heads, K kv heads, E head dim, F ffn, V
// vocabulary. What a dim means to placement travels with the types (graph/dims.h).
#pragma once

#include <span>
#include <string_view>

#include "engine/graph/op.h"

namespace engine::ops {

extern const graph::OpDef kLinear, kLinearDgrad, kLinearWgrad;                      // linear.cpp
extern const graph::OpDef kBiasAdd, kBiasGrad;                                      // bias.cpp
extern const graph::OpDef kAdd;                                                     // add.cpp
extern const graph::OpDef kGelu, kGeluGrad;                                         // gelu.cpp
extern const graph::OpDef kSwiglu, kSwigluGrad;                                     // swiglu.cpp
extern const graph::OpDef kLayerNorm, kLayerNormGrad;                               // layer_norm.cpp
extern const graph::OpDef kRmsNorm, kRmsNormGrad;                                   // rms_norm.cpp
extern const graph::OpDef kEmbedding, kEmbeddingGrad;                               // embedding.cpp
extern const graph::OpDef kQkvSplit, kQkvMerge;                                     // qkv.cpp
extern const graph::OpDef kAttention, kAttentionGrad;                               // attention.cpp
extern const graph::OpDef kDropout, kDropoutGrad;                                   // dropout.cpp
extern const graph::OpDef kCrossEntropy, kCrossEntropyGrad, kLossWeight, kLossSum;  // cross_entropy.cpp

// Every op above, in that order. An explicit table: objects that register themselves from a static library
// are dropped by the linker.
std::span<const graph::OpDef* const> AllOps();

// Null if there is none of that name.
const graph::OpDef* FindOp(std::string_view name);

}  // namespace engine::ops

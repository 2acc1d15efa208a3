#include <array>

#include "engine/ops/ops.h"

namespace engine::ops {

std::span<const graph::OpDef* const> AllOps() {
  static constexpr std::array kOps = {
      &kLinear,     &kLinearDgrad,   &kLinearWgrad, &kBiasAdd,       &kBiasGrad,     &kAdd,
      &kGelu,       &kGeluGrad,      &kSwiglu,      &kSwigluGrad,    &kLayerNorm,    &kLayerNormGrad,
      &kRmsNorm,    &kRmsNormGrad,   &kEmbedding,   &kEmbeddingGrad, &kQkvSplit,     &kQkvMerge,
      &kAttention,  &kAttentionGrad, &kDropout,     &kDropoutGrad,   &kCrossEntropy, &kCrossEntropyGrad,
      &kLossWeight, &kLossSum,
  };
  return kOps;
}

const graph::OpDef* FindOp(std::string_view name) {
  for (const graph::OpDef* op : AllOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

}  // namespace engine::ops

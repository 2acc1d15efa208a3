#include <algorithm>
#include <array>

#include "engine/backend/cuda/launch/prepare.h"
#include "engine/backend/cuda/launch/prepare_fp8.h"

namespace engine::backend::cuda {

const KernelEntry* FindKernel(std::string_view op) {
  static constexpr std::array kKernels = {
      KernelEntry{"linear", PrepareLinear},
      KernelEntry{"linear_gelu", PrepareLinearGelu},
      KernelEntry{"linear_dgrad", PrepareLinearDgrad},
      KernelEntry{"linear_dgrad_gelu", PrepareLinearDgradGelu},
      KernelEntry{"linear_wgrad", PrepareLinearWgrad},
      KernelEntry{"linear_cross_entropy", PrepareLinearCrossEntropy},
      KernelEntry{"attention", PrepareAttention},
      KernelEntry{"attention_grad", PrepareAttentionGrad},
      KernelEntry{"attention_packed", PrepareAttentionPacked},
      KernelEntry{"attention_packed_grad", PrepareAttentionPackedGrad},
      KernelEntry{"layer_norm", PrepareLayerNorm},
      KernelEntry{"add_layer_norm", PrepareAddLayerNorm},
      KernelEntry{"layer_norm_grad", PrepareLayerNormGrad},
      KernelEntry{"layer_norm_grad_add", PrepareLayerNormGradAdd},
      KernelEntry{"rms_norm", PrepareRmsNorm},
      KernelEntry{"add_rms_norm", PrepareAddRmsNorm},
      KernelEntry{"rms_norm_grad", PrepareRmsNormGrad},
      KernelEntry{"rms_norm_grad_add", PrepareRmsNormGradAdd},
      KernelEntry{"add", PrepareAdd},
      KernelEntry{"bias_add", PrepareBiasAdd},
      KernelEntry{"bias_grad", PrepareBiasGrad},
      KernelEntry{"gelu", PrepareGelu},
      KernelEntry{"gelu_grad", PrepareGeluGrad},
      KernelEntry{"gelu_grad_again", PrepareGeluGradAgain},
      KernelEntry{"swiglu", PrepareSwiglu},
      KernelEntry{"swiglu_grad", PrepareSwigluGrad},
      KernelEntry{"swiglu_grad_again", PrepareSwigluGradAgain},
      KernelEntry{"dropout", PrepareDropout},
      KernelEntry{"dropout_grad", PrepareDropout},
      KernelEntry{"embedding", PrepareEmbedding},
      KernelEntry{"embedding_grad", PrepareEmbeddingGrad},
      KernelEntry{"qkv_split", PrepareQkvSplit},
      KernelEntry{"qkv_merge", PrepareQkvMerge},
      KernelEntry{"rotary", PrepareRotary},
      KernelEntry{"rotary_grad", PrepareRotaryGrad},
      KernelEntry{"cross_entropy", PrepareCrossEntropy},
      KernelEntry{"cross_entropy_grad", PrepareCrossEntropyGrad},
      KernelEntry{"loss_weight", PrepareLossWeight},
      KernelEntry{"loss_sum", PrepareLossSum},
      KernelEntry{"sum_squares", PrepareSumSquares},
      KernelEntry{"clip_factor", PrepareClipFactor},
      KernelEntry{"add_shard", PrepareAddShard},
      KernelEntry{"adamw", PrepareAdamW},
      KernelEntry{"zero", PrepareZero},
      KernelEntry{"copy", PrepareCopy},
  };
  const auto* entry =
      std::find_if(kKernels.begin(), kKernels.end(), [&](const auto& e) { return e.op == op; });
  if (entry != kKernels.end()) return entry;
  const auto* fp8 =
      std::find_if(kFp8Kernels.begin(), kFp8Kernels.end(), [&](const auto& e) { return e.op == op; });
  return fp8 == kFp8Kernels.end() ? nullptr : fp8;
}

}  // namespace engine::backend::cuda

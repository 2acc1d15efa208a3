#include "engine/backend/cpu/kernel_table.h"

#include <array>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/status.h"

namespace engine::backend::cpu {

std::span<const KernelEntry> AllKernels() {
  static constexpr std::array kKernels = {
      KernelEntry{"linear", Linear<float>, Linear<double>},
      KernelEntry{"linear_dgrad", LinearDgrad<float>, LinearDgrad<double>},
      KernelEntry{"linear_wgrad", LinearWgrad<float>, LinearWgrad<double>},
      KernelEntry{"bias_add", BiasAdd<float>, BiasAdd<double>},
      KernelEntry{"bias_grad", BiasGrad<float>, BiasGrad<double>},
      KernelEntry{"add", Add<float>, Add<double>},
      KernelEntry{"gelu", Gelu<float>, Gelu<double>},
      KernelEntry{"gelu_grad", GeluGrad<float>, GeluGrad<double>},
      KernelEntry{"swiglu", Swiglu<float>, Swiglu<double>},
      KernelEntry{"swiglu_grad", SwigluGrad<float>, SwigluGrad<double>},
      KernelEntry{"layer_norm", LayerNorm<float>, LayerNorm<double>},
      KernelEntry{"layer_norm_grad", LayerNormGrad<float>, LayerNormGrad<double>, NormGradScratch},
      KernelEntry{"rms_norm", RmsNorm<float>, RmsNorm<double>},
      KernelEntry{"rms_norm_grad", RmsNormGrad<float>, RmsNormGrad<double>, NormGradScratch},
      KernelEntry{"embedding", Embedding<float>, Embedding<double>},
      KernelEntry{"embedding_grad", EmbeddingGrad<float>, EmbeddingGrad<double>},
      KernelEntry{"qkv_split", QkvSplit<float>, QkvSplit<double>},
      KernelEntry{"qkv_merge", QkvMerge<float>, QkvMerge<double>},
      KernelEntry{"attention", Attention<float>, Attention<double>},
      KernelEntry{"attention_grad", AttentionGrad<float>, AttentionGrad<double>},
      KernelEntry{"dropout", Dropout<float>, Dropout<double>},
      KernelEntry{"dropout_grad", Dropout<float>, Dropout<double>},
      KernelEntry{"cross_entropy", CrossEntropy<float>, CrossEntropy<double>},
      KernelEntry{"cross_entropy_grad", CrossEntropyGrad<float>, CrossEntropyGrad<double>},
      KernelEntry{"loss_weight", LossWeight<float>, LossWeight<double>},
      KernelEntry{"loss_sum", LossSum<float>, LossSum<double>},
      KernelEntry{"sum_squares", SumSquares<float>, SumSquares<double>, SumSquaresScratch},
      KernelEntry{"add_shard", AddShard<float>, AddShard<double>},
      KernelEntry{"adamw", AdamW<float>, AdamW<double>},
      KernelEntry{"clip_factor", ClipFactor, ClipFactor},
      KernelEntry{"zero", Zero, Zero},
      KernelEntry{"copy", Copy, Copy},
  };
  return kKernels;
}

const KernelEntry* FindKernel(std::string_view op) {
  for (const KernelEntry& entry : AllKernels()) {
    if (entry.op == op) return &entry;
  }
  return nullptr;
}

Kernel KernelFor(const KernelEntry& entry, std::span<const TensorView> inputs,
                 std::span<const TensorView> outputs) {
  for (const TensorView& input : inputs) {
    if (input.dtype == DType::kF32) return entry.f32;
    if (input.dtype == DType::kF64) return entry.f64;
  }
  ENGINE_CHECK(!outputs.empty(), "{} has no floating-point tensor", entry.op);
  return outputs[0].dtype == DType::kF64 ? entry.f64 : entry.f32;
}

}  // namespace engine::backend::cpu

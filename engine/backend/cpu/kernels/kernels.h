// Every CPU kernel. T is the type of the activations and the statistics, float or double; an op's meaning is
// the doc block of engine/ops/<same file>. A kernel's result does not depend on the number of threads.
#pragma once

#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

#define ENGINE_CPU_KERNEL(name) \
  template <typename T>         \
  void name(const KernelArgs& args)

ENGINE_CPU_KERNEL(Linear);
ENGINE_CPU_KERNEL(LinearDgrad);
ENGINE_CPU_KERNEL(LinearWgrad);
ENGINE_CPU_KERNEL(BiasAdd);
ENGINE_CPU_KERNEL(BiasGrad);
ENGINE_CPU_KERNEL(Add);
ENGINE_CPU_KERNEL(Gelu);
ENGINE_CPU_KERNEL(GeluGrad);
ENGINE_CPU_KERNEL(Swiglu);
ENGINE_CPU_KERNEL(SwigluGrad);
ENGINE_CPU_KERNEL(LayerNorm);
ENGINE_CPU_KERNEL(LayerNormGrad);
ENGINE_CPU_KERNEL(RmsNorm);
ENGINE_CPU_KERNEL(RmsNormGrad);
ENGINE_CPU_KERNEL(Embedding);
ENGINE_CPU_KERNEL(EmbeddingGrad);
ENGINE_CPU_KERNEL(QkvSplit);
ENGINE_CPU_KERNEL(QkvMerge);
ENGINE_CPU_KERNEL(Attention);
ENGINE_CPU_KERNEL(AttentionGrad);
ENGINE_CPU_KERNEL(Dropout);  // dropout_grad as well: the same mask on dy
ENGINE_CPU_KERNEL(CrossEntropy);
ENGINE_CPU_KERNEL(CrossEntropyGrad);
ENGINE_CPU_KERNEL(LossWeight);
ENGINE_CPU_KERNEL(LossSum);

// Flat kernels, of tensors of any shape read as one row of elements.
ENGINE_CPU_KERNEL(SumSquares);  // (x) → f64[1] += Σ x²; always adds, in float64 and in a fixed order
// (param, grad, m, v, control) → param, m, v in place; attributes beta1, beta2, epsilon, weight_decay.
ENGINE_CPU_KERNEL(AdamW);
// (scalars f64[2]: loss sum, sum of squared gradients) → control (plan/control.h); attributes clip, 0 = off,
// and those of the loss scaler (plan/loss_scaler.h).
void ClipFactor(const KernelArgs& args);
ENGINE_CPU_KERNEL(AddShard);        // (x) → out (+)= x
void Zero(const KernelArgs& args);  // () → out, all bytes 0
void Copy(const KernelArgs& args);  // (in) → out, the same bytes

#undef ENGINE_CPU_KERNEL

// Scratch of the kernels that need some (KernelEntry::scratch_bytes).
using Types = std::span<const graph::TensorType>;
std::int64_t NormGradScratch(Types inputs, Types outputs, const graph::Attributes& attributes);
std::int64_t SumSquaresScratch(Types inputs, Types outputs, const graph::Attributes& attributes);

}  // namespace engine::backend::cpu

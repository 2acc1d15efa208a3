// Bytes of scratch that the CUDA kernels ask the planner for. No CUDA header: plans are made on machines
// without GPUs. Each rule is the contract of the kernel of that name: it never uses more than it says, and
// Prepare fails where a library asks for more.
#pragma once

#include <cstdint>

#include "engine/graph/op.h"

namespace engine::backend::cuda {

using Types = graph::TypeSpan;

// cuBLASLt's workspace: split-K algorithms use up to 52 MB on GPT-2's shapes.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{64} << 20;

#define ENGINE_CUDA_SCRATCH(name) \
  std::int64_t name##Scratch(Types inputs, Types outputs, const graph::Attributes& attributes)

ENGINE_CUDA_SCRATCH(Gemm);  // scratch_linear.cpp
ENGINE_CUDA_SCRATCH(
    LinearCrossEntropy);         // scratch_linear.cpp: workspace, logits of one chunk, per-token losses
ENGINE_CUDA_SCRATCH(Attention);  // scratch_attention.cpp
ENGINE_CUDA_SCRATCH(AttentionPacked);
std::int64_t AttentionGradScratch(Types inputs, const graph::Attributes& attributes, bool deterministic);
std::int64_t AttentionPackedGradScratch(Types inputs, const graph::Attributes& attributes,
                                        bool deterministic);
ENGINE_CUDA_SCRATCH(NormGrad);       // scratch_norm.cpp: every norm gradient, plain and with addition
ENGINE_CUDA_SCRATCH(BiasGrad);       // scratch_elementwise.cpp
ENGINE_CUDA_SCRATCH(GeluGradAgain);  // with a bias gradient
ENGINE_CUDA_SCRATCH(EmbeddingGrad);  // scratch_tokens.cpp
ENGINE_CUDA_SCRATCH(LossSum);
ENGINE_CUDA_SCRATCH(SumSquares);  // scratch_optimizer.cpp

}  // namespace engine::backend::cuda

// How an instruction becomes something that can be enqueued: one function an op, listed in kernel_table.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string_view>

#include "engine/backend/backend.h"
#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

class Device;

// Enqueues one instruction on the stream, every argument but the context fixed. May be called while the
// stream is being captured, so it never synchronises, allocates or reads device memory.
using Enqueue = std::function<absl::Status(cudaStream_t stream, const KernelContext& context)>;

// Checks dtypes and shapes, chooses algorithms, makes descriptors: everything that need not be done again.
// Error: this op has no kernel for these tensors.
using Prepare = absl::StatusOr<Enqueue> (*)(Device& device, const LaunchArgs& args);

struct KernelEntry {
  std::string_view op;
  Prepare prepare = nullptr;
};

// Null if there is none of that name.
const KernelEntry* FindKernel(std::string_view op);

#define ENGINE_CUDA_PREPARE(name) \
  absl::StatusOr<Enqueue> Prepare##name(Device& device, const LaunchArgs& args)

// prepare_linear.cpp
ENGINE_CUDA_PREPARE(Linear);
ENGINE_CUDA_PREPARE(LinearGelu);
ENGINE_CUDA_PREPARE(LinearDgrad);
ENGINE_CUDA_PREPARE(LinearDgradGelu);
ENGINE_CUDA_PREPARE(LinearWgrad);
ENGINE_CUDA_PREPARE(LinearCrossEntropy);
// prepare_attention.cpp
ENGINE_CUDA_PREPARE(Attention);
ENGINE_CUDA_PREPARE(AttentionGrad);
ENGINE_CUDA_PREPARE(AttentionPacked);
ENGINE_CUDA_PREPARE(AttentionPackedGrad);
// prepare_norm.cpp
ENGINE_CUDA_PREPARE(LayerNorm);
ENGINE_CUDA_PREPARE(AddLayerNorm);
ENGINE_CUDA_PREPARE(LayerNormGrad);
ENGINE_CUDA_PREPARE(LayerNormGradAdd);
ENGINE_CUDA_PREPARE(RmsNorm);
ENGINE_CUDA_PREPARE(AddRmsNorm);
ENGINE_CUDA_PREPARE(RmsNormGrad);
ENGINE_CUDA_PREPARE(RmsNormGradAdd);
// prepare_elementwise.cpp
ENGINE_CUDA_PREPARE(Add);
ENGINE_CUDA_PREPARE(BiasAdd);
ENGINE_CUDA_PREPARE(BiasGrad);
ENGINE_CUDA_PREPARE(Gelu);
ENGINE_CUDA_PREPARE(GeluGrad);
ENGINE_CUDA_PREPARE(GeluGradAgain);
ENGINE_CUDA_PREPARE(Swiglu);
ENGINE_CUDA_PREPARE(SwigluGrad);
ENGINE_CUDA_PREPARE(SwigluGradAgain);
ENGINE_CUDA_PREPARE(Dropout);
// prepare_tokens.cpp
ENGINE_CUDA_PREPARE(Embedding);
ENGINE_CUDA_PREPARE(EmbeddingGrad);
ENGINE_CUDA_PREPARE(QkvSplit);
ENGINE_CUDA_PREPARE(QkvMerge);
ENGINE_CUDA_PREPARE(Rotary);
ENGINE_CUDA_PREPARE(RotaryGrad);
ENGINE_CUDA_PREPARE(CrossEntropy);
ENGINE_CUDA_PREPARE(CrossEntropyGrad);
ENGINE_CUDA_PREPARE(LossWeight);
ENGINE_CUDA_PREPARE(LossSum);
// prepare_optimizer.cpp
ENGINE_CUDA_PREPARE(SumSquares);
ENGINE_CUDA_PREPARE(ClipFactor);
ENGINE_CUDA_PREPARE(AdamW);
ENGINE_CUDA_PREPARE(AddShard);
ENGINE_CUDA_PREPARE(Zero);
ENGINE_CUDA_PREPARE(Copy);

}  // namespace engine::backend::cuda

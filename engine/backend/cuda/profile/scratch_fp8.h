// Scratch of the FP8 kernels, by op.
#pragma once

#include <array>
#include <string_view>

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

ENGINE_CUDA_SCRATCH(Quantize);         // with a bias gradient
ENGINE_CUDA_SCRATCH(QuantizeCurrent);  // likewise
ENGINE_CUDA_SCRATCH(AddNormQuantize);  // where the norm is too wide to be quantised in one kernel
ENGINE_CUDA_SCRATCH(NormGradQuantize);
ENGINE_CUDA_SCRATCH(LinearCrossEntropyFp8);  // scratch_linear.cpp

struct Fp8ScratchEntry {
  std::string_view op;
  std::int64_t (*bytes)(Types, Types, const graph::Attributes&);
};

inline constexpr std::array kFp8Scratch = {
    Fp8ScratchEntry{"quantize", QuantizeScratch},
    Fp8ScratchEntry{"quantize_current", QuantizeCurrentScratch},
    Fp8ScratchEntry{"gelu_grad_quantize", QuantizeScratch},
    Fp8ScratchEntry{"add_layer_norm_quantize", AddNormQuantizeScratch},
    Fp8ScratchEntry{"add_rms_norm_quantize", AddNormQuantizeScratch},
    Fp8ScratchEntry{"layer_norm_grad_add_quantize", NormGradQuantizeScratch},
    Fp8ScratchEntry{"rms_norm_grad_add_quantize", NormGradQuantizeScratch},
    Fp8ScratchEntry{"linear_fp8", GemmScratch},
    Fp8ScratchEntry{"linear_dgrad_fp8", GemmScratch},
    Fp8ScratchEntry{"linear_wgrad_fp8", GemmScratch},
    Fp8ScratchEntry{"linear_cross_entropy_fp8", LinearCrossEntropyFp8Scratch},
};

}  // namespace engine::backend::cuda

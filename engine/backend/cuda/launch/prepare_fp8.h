// The FP8 kernels, by op (prepare.h).
#pragma once

#include <array>

#include "engine/backend/cuda/launch/prepare.h"

namespace engine::backend::cuda {

// Per-tensor scaling. `scales` is the state of the tensor that is quantised, f32[8]
// (kernels/quantize.h). T rows, C columns, multiples of 16; q is e4m3 or e5m2 as attribute `format` says.
ENGINE_CUDA_PREPARE(Quantize);                  // x, scales → q, qt[C, T][, d_bias]
ENGINE_CUDA_PREPARE(QuantizeCurrent);           // x → q, qt, scales[, d_bias]
ENGINE_CUDA_PREPARE(LayerNormQuantizeAgain);    // x, gamma, beta, mean, rstd, scales → qt
ENGINE_CUDA_PREPARE(RmsNormQuantizeAgain);      // x, gamma, rstd, scales → qt
ENGINE_CUDA_PREPARE(GeluQuantize);              // pre, scales → q, qt
ENGINE_CUDA_PREPARE(SwigluQuantize);            // x[T, 2, F], scales → q[T, F], qt[F, T]
ENGINE_CUDA_PREPARE(GeluGradQuantize);          // pre, dy, scales → q, qt[, d_bias]
ENGINE_CUDA_PREPARE(SwigluGradQuantize);        // x[T, 2, F], dy[T, F], scales → q[T, 2F], qt[2F, T]
ENGINE_CUDA_PREPARE(AddLayerNormQuantize);      // x, branch, gamma, beta, scales → sum, q, qt, mean, rstd
ENGINE_CUDA_PREPARE(AddRmsNormQuantize);        // x, branch, gamma, scales → sum, q, qt, rstd
ENGINE_CUDA_PREPARE(LayerNormGradAddQuantize);  // dy, x, gamma, mean, rstd, residual, scales →
                                                // dx, q, qt, d_gamma, d_beta[, d_bias]
ENGINE_CUDA_PREPARE(RmsNormGradAddQuantize);    // dy, x, gamma, rstd, residual, scales →
                                                // dx, q, qt, d_gamma[, d_bias]
ENGINE_CUDA_PREPARE(LinearFp8);                 // x8[T, K], w8[N, K], scales_x, scales_w[, bias] → y[T, N]
ENGINE_CUDA_PREPARE(LinearDgradFp8);            // dy8[T, N], w8t[K, N], scales_dy, scales_w → dx[T, K]
ENGINE_CUDA_PREPARE(LinearWgradFp8);            // dy8t[N, T], x8t[K, T], scales_dy, scales_x → dw[N, K]
ENGINE_CUDA_PREPARE(LinearCrossEntropyFp8);     // x, w8[V, D], w8t, scales_w, labels → dx, dw, loss
// states f32[8·n], in place: each tensor's scale for the coming iteration. Attribute margin: the scale is
// smaller by 2^margin.
ENGINE_CUDA_PREPARE(Fp8Update);

inline constexpr std::array kFp8Kernels = {
    KernelEntry{"quantize", PrepareQuantize},
    KernelEntry{"quantize_current", PrepareQuantizeCurrent},
    KernelEntry{"layer_norm_quantize_again", PrepareLayerNormQuantizeAgain},
    KernelEntry{"rms_norm_quantize_again", PrepareRmsNormQuantizeAgain},
    KernelEntry{"gelu_quantize", PrepareGeluQuantize},
    KernelEntry{"swiglu_quantize", PrepareSwigluQuantize},
    KernelEntry{"gelu_grad_quantize", PrepareGeluGradQuantize},
    KernelEntry{"swiglu_grad_quantize", PrepareSwigluGradQuantize},
    KernelEntry{"add_layer_norm_quantize", PrepareAddLayerNormQuantize},
    KernelEntry{"add_rms_norm_quantize", PrepareAddRmsNormQuantize},
    KernelEntry{"layer_norm_grad_add_quantize", PrepareLayerNormGradAddQuantize},
    KernelEntry{"rms_norm_grad_add_quantize", PrepareRmsNormGradAddQuantize},
    KernelEntry{"linear_fp8", PrepareLinearFp8},
    KernelEntry{"linear_dgrad_fp8", PrepareLinearDgradFp8},
    KernelEntry{"linear_wgrad_fp8", PrepareLinearWgradFp8},
    KernelEntry{"linear_cross_entropy_fp8", PrepareLinearCrossEntropyFp8},
    KernelEntry{"fp8_update", PrepareFp8Update},
};

}  // namespace engine::backend::cuda

// Launchers of optimizer.cu: kernels over flat buffers, whose elements are one row of any length.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/philox.h"

namespace engine::backend::cuda {

// *sum (+)= Σ x² of x[count] (float, bf16 or fp16), squares and sums in f64, in an order fixed by `count` and
// `blocks`. partial: `blocks` numbers of scratch.
void SumSquares(const void* x, DType dtype, std::int64_t count, bool accumulate, double* partial, int blocks,
                double* sum, cudaStream_t stream);

// *sum (+)= Σ partial[count], in an order fixed by `count`. One block.
void SumPartials(const double* partial, std::int64_t count, bool accumulate, double* sum,
                 cudaStream_t stream);

// Gradient clipping, and for fp16 the loss scalers of Megatron-LM (ConstantGradScaler, DynamicGradScaler).
struct ClipOptions {
  double clip = 0;        // largest norm; 0: no clipping
  bool skips = false;     // skip updates whose norm is not finite
  bool dynamic = false;   // whether the loss scale moves; the next three are read only then
  double window = 0;      // clean iterations after which the loss scale doubles
  double hysteresis = 0;  // overflows before it is halved, once; refilled when it doubles
  double min_scale = 0;
};

// Reads scalars f64[2] (loss sum, sum of squared gradients) and brings control (plan/control.h) from the
// state before this update to the state that the optimizer reads: learning rate, norm, factor, step, and the scaler's
// numbers.
void ClipFactor(const double* scalars, const ClipOptions& options, double* control, cudaStream_t stream);

// What an optimizer works on (plan/optimizer.h).
struct UpdateBuffers {
  void* weights = nullptr;               // [count], the master weights or the parameter itself
  DType weight_dtype = DType::kF32;      // or kBF16
  const void* grad = nullptr;            // [count]
  DType grad_dtype = DType::kF32;        // or kBF16
  void* states[2] = {};                  // [count] each, in the optimizer's order; null: it has fewer
  DType state_dtype = DType::kF32;       // of all; or kBF16
  void* parameter = nullptr;             // [count], weights in fp32 rounded to nearest; null: none
  DType parameter_dtype = DType::kBF16;  // or kF16
};
// How new states and weights become bf16. Each is rounded to one of the two neighbours, up in magnitude with
// the probability of what is cut off: 16 random bits are added below the last bit kept. The bits for element
// i are PhiloxWord(states, offset + i, step), its low half for the first state and its high half for the second,
// and for a weight the low half of PhiloxWord(weights, offset + i, step): the same for any cut of a buffer whose pieces name
// their offset. A NaN stays one. The weights move by the states before rounding.
struct UpdateRounding {
  PhiloxKey states = {};
  PhiloxKey weights = {};
  std::int64_t offset = 0;  // of element 0; a multiple of 4 for the fast path
};
// One step of an optimizer (the formulas: plan/optimizer.cpp) with the learning rate, step and gradient factor of
// control. Factor 0: nothing is written. `rounding` is not read where all is fp32. `multiprocessors` sizes the grid,
// and changes no result. An element takes 28 bytes of AdamW and 20 of SGD with everything in fp32; 4 less for each
// state in bf16, 2 less with bf16 gradients, 4 less with bf16 weights; 2 more with a parameter.
struct AdamWOptions {
  double beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  double learning_rate_scale = 1;  // of the control block's learning rate
};
void AdamW(const UpdateBuffers& buffers, std::int64_t count, const AdamWOptions& options,
           const UpdateRounding& rounding, const double* control, int multiprocessors, cudaStream_t stream);
struct SgdOptions {
  double momentum = 0, weight_decay = 0;
  double learning_rate_scale = 1;
};
void Sgd(const UpdateBuffers& buffers, std::int64_t count, const SgdOptions& options,
         const UpdateRounding& rounding, const double* control, int multiprocessors, cudaStream_t stream);

// weights −= step · sign(grad), of graph::TrainingSettings::sign_step; nothing where the update is skipped.
void SignStep(float* weights, const float* grad, std::int64_t count, double step, const double* control,
              cudaStream_t stream);

// sum[count] (+)= x[count] (float, bf16 or fp16); both on a 16-byte boundary.
void AddShard(const void* x, DType dtype, std::int64_t count, bool accumulate, float* sum,
              cudaStream_t stream);

// *finite = 1 if no element of x[count] (float, bf16, fp16 or double) is an infinity or NaN, else 0.
void AllFinite(const void* x, DType dtype, std::int64_t count, int* finite, cudaStream_t stream);

// to[count] = from[count], rounded to nearest even; both of float, bf16 or fp16, on a 16-byte boundary.
void Convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count,
             cudaStream_t stream);

}  // namespace engine::backend::cuda

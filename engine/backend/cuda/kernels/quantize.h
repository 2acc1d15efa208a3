// FP8 with per-tensor scaling (Micikevicius et al., arXiv:2209.05433). Delayed: a tensor is quantised with
// the scale that earlier iterations' abs-max gave, and its own abs-max is noted for the next. Current: with
// that of its own abs-max, which a pass before finds. Each kernel writes the FP8 numbers twice, as they lie
// and transposed, as FP8 products take both operands with the contracted dim last.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/backend/cuda/kernels/norm.h"
#include "engine/base/dtype.h"

namespace engine::backend::cuda {

// The state of a quantised tensor: eight floats on a 32-byte boundary, the first where cuBLASLt reads it.
inline constexpr int kFp8StateSize = 8;
inline constexpr int kFp8InverseScale = 0;  // what a stored number is multiplied by to give the real one
inline constexpr int kFp8Scale = 4;         // its inverse
inline constexpr int kFp8AbsMax = 5;        // of what was quantised since the last update; inf for NaN
inline constexpr int kFp8Format = 6;        // 0: e4m3, 1: e5m2; read by the update only

// Where the numbers go: stored = saturate(value · scale), value rounded to the 16-bit type that the unfused
// op would have stored. Sizes: R rows, C columns, both multiples of 16.
struct Fp8Output {
  DType format = DType::kE4M3;  // e4m3, e5m2
  void* q = nullptr;            // [R, C]; null: only qt is wanted (LaunchQuantize)
  void* qt = nullptr;           // [C, R]
  float* state = nullptr;       // [8]
};

enum class Fp8Source : std::uint8_t {
  kCopy,        // a[R, C]
  kGelu,        // gelu_tanh(a[R, C])
  kGeluGrad,    // b[R, C] · gelu_tanh'(a[R, C])
  kSwiglu,      // silu(a[R, 0, C]) · a[R, 1, C]
  kSwigluGrad,  // a[R, 2, F], b[R, F], C = 2F: of silu(a[R, 0, F]) · a[R, 1, F] with respect to a, times b
  kNorm,        // the norm of a[R, C], with statistics that are known
};

struct Quantize {
  Fp8Source source = Fp8Source::kCopy;
  DType dtype = DType::kBF16;  // of a and b: bf16, f16
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // of the output
  const void* a = nullptr;
  const void* b = nullptr;
  const void* gamma = nullptr;  // kNorm: [C]
  float gain_offset = 0;        // kNorm: added to gamma
  const void* beta = nullptr;   // kNorm: [C]; null: RMSNorm
  const float* mean = nullptr;  // kNorm: [R]; null: RMSNorm
  const float* rstd = nullptr;  // kNorm: [R]
  Fp8Output out = {};
  // Only with kCopy: [2], of the last of the groups that a's rows of experts are in (graph/rows.h). Rows behind it are
  // neither read nor written. Null: no rows of experts.
  const std::int32_t* last_group = nullptr;
  bool current = false;  // only with kCopy: the whole state is made here
  // Only with kCopy and kGeluGrad; null: not wanted. d_bias[C] (+)= Σ_R of the values before they are
  // quantised; partial: scratch [QuantizeLines(R), C].
  float* d_bias = nullptr;
  bool accumulate_bias = false;
  float* partial = nullptr;
};
void LaunchQuantize(const Quantize& quantize, cudaStream_t stream);

// The norm of x + branch, whose y goes to `out` alone. bf16, f16; norm.y: scratch [R, D] unless
// NormFitsStrip(D).
void LaunchNormQuantize(const Norm& norm, const Fp8Output& out, cudaStream_t stream);

// The gradient with a residual, whose dx goes to `out` besides. bf16, f16; grad.partial: scratch
// [NormGradQuantizeLines(R, D), sums, D].
void LaunchNormGradQuantize(const NormGrad& grad, const Fp8Output& out, cudaStream_t stream);

// states[n, 8]: scale = largest of the format / abs-max / 2^margin where the abs-max is positive and finite,
// else as it was; abs-max = 0.
void LaunchFp8Update(std::int64_t tensors, float* states, int margin, cudaStream_t stream);

// The scale of numbers of which none is larger than bound · control[kLossScale] · control[kLabelFactor] (plan/control.h;
// null: 1).
void LaunchFp8Bound(DType format, double bound, const double* control, float* state, cudaStream_t stream);

}  // namespace engine::backend::cuda

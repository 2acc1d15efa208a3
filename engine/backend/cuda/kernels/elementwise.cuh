// Kernels on single elements: the parts that they share, and LaunchElementwise, which makes a kernel of a function of one
// element, as most activations are.
#pragma once

#include "engine/backend/cuda/kernels/early.cuh"
#include "engine/backend/cuda/kernels/logical_dims.h"
#include "engine/backend/cuda/kernels/vector.cuh"
#include "engine/backend/cuda/profile/column_sums.h"

namespace engine::backend::cuda {

inline constexpr int kElementwiseThreads = 256;

// Quotient and remainder; 32-bit division where the numbers allow it is many times quicker.
__device__ __forceinline__ std::int64_t Divide(std::int64_t a, std::int64_t b, std::int64_t* remainder) {
  if (((a | b) >> 32) == 0) {
    const auto narrow = static_cast<std::uint32_t>(a);
    const std::uint32_t quotient = narrow / static_cast<std::uint32_t>(b);
    *remainder = narrow - quotient * static_cast<std::uint32_t>(b);
    return quotient;
  }
  *remainder = a % b;
  return a / b;
}

// −1 of an index that is not here.
__device__ __forceinline__ std::int64_t LogicalIndex(const LogicalDims::Dim& dim, std::int64_t local) {
#pragma unroll
  for (int i = 0; i < LogicalDims::kMaxPieces; ++i) {
    if (i >= dim.pieces) break;
    if (local < dim.piece[i].length) return dim.piece[i].start + local;
    local -= dim.piece[i].length;
  }
  return -1;
}

// kWidth consecutive elements as floats: 8 by 16-byte accesses, or 1.
template <int kWidth, typename T>
__device__ __forceinline__ void LoadElements(const T* from, float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    Unpack8(LoadPack8Streaming(from), x);
  } else {
    x[0] = ToFloat(*from);
  }
}
template <int kWidth, typename T>
__device__ __forceinline__ void StoreElements(T* to, const float (&x)[kWidth]) {
  if constexpr (kWidth == 8) {
    Store8(to, x);
  } else {
    *to = FromFloat<T>(x[0]);
  }
}

template <typename Pointer, int kCount>
struct Pointers {
  Pointer at[kCount];
};

// function(in[kInputs], out[kOutputs]) on each element. A thread loads everything before it stores anything,
// so that an output may be an input.
template <typename T, int kInputs, int kOutputs, typename Function>
__global__ void __launch_bounds__(kElementwiseThreads)
    ElementwiseKernel(std::int64_t elements, Pointers<const T*, kInputs> inputs,
                      Pointers<T*, kOutputs> outputs, Function function) {
  LetNextBegin();
  AwaitEarlier();
  constexpr int kUnroll = sizeof(T) == 2 ? 2 : 1;  // vectors of eight that a thread has in flight per input
  const std::int64_t first = (std::int64_t{blockIdx.x} * kUnroll * kElementwiseThreads + threadIdx.x) * 8;
  Pack8<T> packs[kUnroll][kInputs];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t at = first + u * kElementwiseThreads * 8;
    if (at + 8 > elements) continue;
#pragma unroll
    for (int k = 0; k < kInputs; ++k) packs[u][k] = LoadPack8Streaming(inputs.at[k] + at);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t at = first + u * kElementwiseThreads * 8;
    if (at + 8 <= elements) {
      float in[kInputs][8];
      float out[kOutputs][8];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) Unpack8(packs[u][k], in[k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float arguments[kInputs];
        float results[kOutputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) arguments[k] = in[k][i];
        function(arguments, results);
#pragma unroll
        for (int k = 0; k < kOutputs; ++k) out[k][i] = results[k];
      }
#pragma unroll
      for (int k = 0; k < kOutputs; ++k) Store8(outputs.at[k] + at, out[k]);
    } else {
      for (std::int64_t i = at; i < elements; ++i) {
        float arguments[kInputs];
        float results[kOutputs];
#pragma unroll
        for (int k = 0; k < kInputs; ++k) arguments[k] = ToFloat(inputs.at[k][i]);
        function(arguments, results);
#pragma unroll
        for (int k = 0; k < kOutputs; ++k) outputs.at[k][i] = FromFloat<T>(results[k]);
      }
    }
  }
}

inline unsigned ElementwiseBlocks(std::int64_t elements, std::int64_t elements_per_thread) {
  return static_cast<unsigned>(CeilDivide(elements, kElementwiseThreads * elements_per_thread));
}

// Runs `function` on each of `elements`: outputs may be inputs of their place.
template <typename T, int kInputs, int kOutputs, typename Function>
void LaunchElementwise(std::int64_t elements, const void* const (&inputs)[kInputs],
                       void* const (&outputs)[kOutputs], Function function, cudaStream_t stream) {
  if (elements == 0) return;
  Pointers<const T*, kInputs> in;
  Pointers<T*, kOutputs> out;
  for (int i = 0; i < kInputs; ++i) in.at[i] = static_cast<const T*>(inputs[i]);
  for (int i = 0; i < kOutputs; ++i) out.at[i] = static_cast<T*>(outputs[i]);
  Launch(elements <= kMostEarlyElements, ElementwiseKernel<T, kInputs, kOutputs, Function>,
         ElementwiseBlocks(elements, sizeof(T) == 2 ? 16 : 8), kElementwiseThreads, 0, stream, elements, in,
         out, function);
}

}  // namespace engine::backend::cuda

// Products of rows of experts (graph/rows.h, ops/grouped_linear.cpp), each expert's with its own matrix. How many rows an
// expert has is read on the device, so that one recorded program holds for all choices of a batch.
// E experts, R rows, O elements of a row of results, I of a row of inputs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/dtype.h"

namespace engine::backend::cuda {

enum class GroupedKind : std::uint8_t {
  kForward,  // y[R, O] = x[R, I] · w[E, O, I]ᵀ
  kDgrad,    // dx[R, I] = dy[R, O] · w[E, O, I]
  kWgrad,    // dw[E, O, I] (+)= dy[R, O]ᵀ · x[R, I]
};

// In FP8 a is e4m3 or e5m2 and b e4m3, and both lie with the summed dim inside: kForward takes x[R, I] and w[E, O, I], kDgrad
// dy[R, O] and w as [I, E, O], kWgrad dy as [O, R] and x as [I, R]. R, O and I are multiples of 16 then.
struct GroupedProduct {
  GroupedKind kind = GroupedKind::kForward;
  std::int64_t experts = 0, rows = 0, out = 0, in = 0;  // E, R, O, I
  const void* a = nullptr;                              // x, dy, dy
  const void* b = nullptr;                              // w, w, x
  void* d = nullptr;                                    // y, dx, dw
  DType operands = DType::kF32;                         // of a and b: f32, bf16, f16; FP8: of a
  DType result = DType::kF32;                           // of d: as the operands, or f32
  bool accumulate = false;                              // kWgrad: added to d
  const std::int32_t* groups = nullptr;                 // [E, 2]: first row, a multiple of 128, and rows
  const float* a_unit = nullptr;                        // FP8: what a stored 1 of a stands for
  const float* b_unit = nullptr;

  constexpr bool fp8() const { return operands == DType::kE4M3 || operands == DType::kE5M2; }
  // The product of an expert is d[m, n] = Σ_k a · b; of the rows, m or k counts those of one expert.
  constexpr std::int64_t n() const { return kind == GroupedKind::kForward ? out : in; }
};

// Any sizes, with plain fp32 arithmetic. Rows that fill a group up to a multiple of 128 are taken for zeros and give
// zeros; of rows behind the last group nothing is read or written. dw of an expert without rows is zero. Results of FP8
// are bf16, f16 or f32.
void GroupedLinearPortable(const GroupedProduct& product, cudaStream_t stream);

// order[E]: experts, those with the most rows first.
void OrderGroups(const std::int32_t* groups, std::int64_t experts, std::int32_t* order, cudaStream_t stream);

}  // namespace engine::backend::cuda

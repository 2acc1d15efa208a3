// Grouped products (grouped.h) of bf16 and of FP8 on Hopper's tensor cores.
#pragma once

#include <cuda.h>

#include "engine/backend/cuda/kernels/grouped.h"

namespace engine::backend::cuda {

// Whether this program has the kernel: it is compiled for sm_90a.
bool HasGroupedSm90a();

// Elements along the three dims of a box, the inner one first.
struct TensorBox {
  std::uint32_t x = 0, y = 0, z = 1;
};
// The boxes in which the kernel reads a and b and writes d, which it takes as tensors of three dims: rows of experts as
// [1, R, elements], matrices as [E, O, I]; in FP8 as grouped.h has them, the rows of kWgrad as [1, elements, R]. All with 128-byte swizzle.
struct GroupedBoxes {
  TensorBox a, b, d;
};
GroupedBoxes GroupedBoxesOf(const GroupedProduct& product);

// Operands in bf16 or FP8, result in bf16 or, of kWgrad, in f32; O and I multiples of 8, in FP8 of 16. R, O, I < 2³¹.
struct GroupedSm90a {
  GroupedProduct product;
  const std::int32_t* order =
      nullptr;  // kWgrad: experts in the order in which they are worked on (OrderGroups)
  int multiprocessors = 0;
  // 1 or 2 blocks share what they read of b: better, but where the second one often has nothing to do.
  int cluster = 1;
  CUtensorMap a{}, b{}, d{};
};

// How many blocks should share b.
int GroupedClusterOf(const GroupedProduct& product);

// Once before the first launch of a product of this kind.
cudaError_t AllowGroupedSm90a(const GroupedSm90a& grouped);
// What GroupedLinearPortable does. Rows that fill up a group are read, and have to be zeros.
cudaError_t LaunchGroupedSm90a(const GroupedSm90a& grouped, cudaStream_t stream);

}  // namespace engine::backend::cuda

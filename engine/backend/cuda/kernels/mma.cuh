// Products of a warp's tensor cores on tiles of 16 × 16 and 16 × 8 numbers (PTX ISA, "mma.sync.m16n8k16"), in bf16 and fp16 with
// sums in fp32, for kernels that do not need wgmma.cuh. Of a[16, 16] a thread has pairs of columns lane % 4 · 2 of rows lane / 4
// and eight further down, then the same of columns eight further on; of b[8, 16] those of row lane / 4; of d[16, 8] columns
// lane % 4 · 2 and the one behind it of row lane / 4, then of the row eight further down.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace engine::backend::cuda {

// d += a · bᵀ
__device__ __forceinline__ void MultiplyTile(__nv_bfloat16, float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MultiplyTile(__half, float (&d)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace engine::backend::cuda

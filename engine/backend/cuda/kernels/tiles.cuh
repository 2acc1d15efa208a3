// Tiles in shared memory: copied there while a block computes (PTX ISA, "cp.async"; groups of copies: vector.cuh), and read as
// mma.cuh's products want them ("ldmatrix").
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::backend::cuda {

// Four matrices of 8 × 8 elements of 16 bits; a lane says where one row of eight lies.
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(std::uint32_t (&r)[4], const void* row) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  }
}

// 16 bytes, or zeros.
__device__ __forceinline__ void CopyAsync(void* to, const void* from, bool there) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

}  // namespace engine::backend::cuda

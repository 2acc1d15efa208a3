// Instructions of sm_90a (PTX ISA 8.0 and later, sections "wgmma", "mbarrier", "cp.async.bulk.tensor"): products of
// warpgroups, whose operands lie in shared memory, copies of boxes of tensors by the TMA unit, and the barriers in
// shared memory on which the two wait for each other. Shared memory is named by 32-bit addresses of its window.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace engine::backend::cuda::hopper {

__device__ __forceinline__ std::uint32_t SharedAddress(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// ------------------------------------------------------------------------------------------------------------ barriers
// 8 bytes each. A phase is over once `arrivals` threads have arrived and all bytes that were announced have come.

__device__ __forceinline__ void InitBarrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last InitBarrier, before the barriers of the cluster's blocks meet: all of them see the barriers.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and announces bytes that copies will bring.
__device__ __forceinline__ void ArriveExpecting(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Arrives at the barrier of the same address of a block of the cluster. Without .release.cluster, with which products are
// slower by a fifth: the barrier is for memory that was read, not written.
__device__ __forceinline__ void ArriveAt(std::uint32_t barrier, std::uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
// Until the phase of this parity is over; before the first phase, that of parity 1 counts as over.
__device__ __forceinline__ void WaitFor(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@over bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The 128 threads of a warpgroup; `barrier`: one of the block's 16, which nobody else uses; 0 is that of __syncthreads.
__device__ __forceinline__ void MeetWarpgroup(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}
// All threads of all blocks of the cluster.
__device__ __forceinline__ void MeetCluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
__device__ __forceinline__ std::uint32_t BlockInCluster() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// -------------------------------------------------------------------------------------------------------------- copies
// Boxes of tensors of three dims. What of a box lies outside of its tensor is read as zeros, and not written.

// How long L2 keeps what is copied (createpolicy's encodings, as cutlass/arch/copy_sm90_desc.hpp has them).
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000;
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000;

struct Place {
  int x, y, z;  // the first element of a box; x is the inner dim
};

// To shared memory of the own block, or, with kBlocks > 1, to the same addresses of all blocks of the cluster, at whose
// barriers of the same address the bytes arrive.
template <int kBlocks>
__device__ __forceinline__ void CopyBox(const CUtensorMap& tensor, const Place& at, std::uint32_t shared,
                                        std::uint32_t barrier, std::uint64_t policy) {
  if constexpr (kBlocks == 1) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared),
        "l"(&tensor), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z), "l"(policy)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared),
        "l"(&tensor), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z),
        "h"(static_cast<std::uint16_t>((1U << kBlocks) - 1U)), "l"(policy)
        : "memory");
  }
}

// From shared memory; each call is a group of its own, of this thread. Whoever wrote there has called ShowToCopies before.
__device__ __forceinline__ void StoreBox(const CUtensorMap& tensor, const Place& at, std::uint32_t shared,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;\n"
      "cp.async.bulk.commit_group;" ::"l"(&tensor),
      "r"(shared), "r"(at.x), "r"(at.y), "r"(at.z), "l"(policy)
      : "memory");
}
// The same, added to what the tensor holds, in its element type.
__device__ __forceinline__ void AddBox(const CUtensorMap& tensor, const Place& at, std::uint32_t shared) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&tensor),
      "r"(shared), "r"(at.x), "r"(at.y), "r"(at.z)
      : "memory");
}
// What this thread has written to shared memory is seen by copies that start after a barrier.
__device__ __forceinline__ void ShowToCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Until at most kNewer of this thread's stores still read shared memory.
template <int kNewer>
__device__ __forceinline__ void WaitForStoresToRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNewer) : "memory");
}
__device__ __forceinline__ void WaitForStores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ------------------------------------------------------------------------------------------------------------ products

// A matrix in shared memory as boxes whose rows and whose swizzle are of kRowBytes bytes (128, 64 or 32) have it, from an address
// on that is a multiple of eight rows. `stride` is read where the summed dim is not the inner one: bytes from a row's elements of
// the inner dim to as many next ones.
template <int kRowBytes = 128>
__device__ __forceinline__ std::uint64_t MatrixAt(std::uint32_t shared, std::uint32_t stride) {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32);
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  constexpr std::uint64_t kEightRows = 8 * kRowBytes;  // bytes
  return (shared & 0x3FFFFU) >> 4 | static_cast<std::uint64_t>(stride >> 4) << 16 | (kEightRows >> 4) << 32 |
         kSwizzle << 62;
}
// What a step of 16 along the summed dim adds to MatrixAt.
template <bool kSummedDimOuter, int kRowBytes = 128>
__device__ constexpr std::uint64_t StepOf16(int steps) {
  return static_cast<std::uint64_t>(steps) * (kSummedDimOuter ? 16 * kRowBytes : 16 * 2) / 16;
}
// Where a row's byte stands in it: the swizzle moves pieces of 16 bytes.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t Swizzled(std::uint32_t row, std::uint32_t byte) {
  return byte ^ (row / (128 / kRowBytes) % (kRowBytes / 16)) << 4;
}

// The same of a step of 32 bytes, where the summed dim is the inner one.
__device__ constexpr std::uint64_t StepOf32Bytes(int steps) {
  return static_cast<std::uint64_t>(steps) * 32 / 16;
}

inline constexpr int kSums = 128;  // that a thread has of 64 × 256

// Registers that products read and write are not touched by anything else between two of these.
__device__ __forceinline__ void Pin(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
__device__ __forceinline__ void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
__device__ __forceinline__ void EndProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kNewer groups are under way.
template <int kNewer>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewer) : "memory");
}

// sums[64, 256] += a[64, 16] · b[256, 16]ᵀ in bf16 by a warpgroup, under way when this returns. kAOuter, kBOuter: the summed
// dim is the outer one. Of row 16·warp + lane / 4, sums 4·c and 4·c + 1 are columns 8·c + lane % 4 · 2 and the one behind
// it; sums 4·c + 2 and 4·c + 3 are those of the row eight further down.
#define ENGINE_TEN(tens)                                                                               \
  "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens "6, %" #tens \
  "7, %" #tens "8, %" #tens "9, "
#define ENGINE_FOUR_SUMS(i) "+f"(sums[i]), "+f"(sums[(i) + 1]), "+f"(sums[(i) + 2]), "+f"(sums[(i) + 3])
#define ENGINE_16_SUMS(i) \
  ENGINE_FOUR_SUMS(i), ENGINE_FOUR_SUMS((i) + 4), ENGINE_FOUR_SUMS((i) + 8), ENGINE_FOUR_SUMS((i) + 12)
template <bool kAOuter, bool kBOuter>
__device__ __forceinline__ void Multiply(std::uint64_t a, std::uint64_t b, float (&sums)[kSums]) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"  //
      ENGINE_TEN() ENGINE_TEN(1) ENGINE_TEN(2) ENGINE_TEN(3) ENGINE_TEN(4) ENGINE_TEN(5) ENGINE_TEN(6) ENGINE_TEN(7)
          ENGINE_TEN(8) ENGINE_TEN(9) ENGINE_TEN(10) ENGINE_TEN(11)
              "%120, %121, %122, %123, %124, %125, %126, %127}, "
              "%128, %129, add, 1, 1, %130, %131;\n"
              "}"
      : ENGINE_16_SUMS(0), ENGINE_16_SUMS(16), ENGINE_16_SUMS(32), ENGINE_16_SUMS(48), ENGINE_16_SUMS(64),
        ENGINE_16_SUMS(80), ENGINE_16_SUMS(96), ENGINE_16_SUMS(112)
      : "l"(a), "l"(b), "n"(kAOuter ? 1 : 0), "n"(kBOuter ? 1 : 0));
}

// sums[64, 256] += a[64, 32] · b[256, 32]ᵀ of FP8, the summed dim inside, a in e4m3 or e5m2, b in e4m3; else as Multiply. The
// unit adds up with 14 bits or so (DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.5.2).
#define ENGINE_MULTIPLY_FP8(format_of_a) \
  asm volatile(                                                                                                  \
      "{\n"                                                                                                      \
      ".reg .pred add;\n"                                                                                        \
      "setp.ne.b32 add, 1, 0;\n"                                                                                 \
      "wgmma.mma_async.sync.aligned.m64n256k32.f32." format_of_a ".e4m3 {" ENGINE_TEN() ENGINE_TEN(1)            \
          ENGINE_TEN(2) ENGINE_TEN(3) ENGINE_TEN(4) ENGINE_TEN(5) ENGINE_TEN(6) ENGINE_TEN(7) ENGINE_TEN(8)      \
              ENGINE_TEN(9) ENGINE_TEN(10) ENGINE_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}, "    \
                                                          "%128, %129, add, 1, 1;\n"                             \
                                                          "}"                                                    \
      : ENGINE_16_SUMS(0), ENGINE_16_SUMS(16), ENGINE_16_SUMS(32), ENGINE_16_SUMS(48), ENGINE_16_SUMS(64),       \
        ENGINE_16_SUMS(80), ENGINE_16_SUMS(96), ENGINE_16_SUMS(112)                                              \
      : "l"(a), "l"(b))
template <bool kAIsE5M2>
__device__ __forceinline__ void MultiplyFp8(std::uint64_t a, std::uint64_t b, float (&sums)[kSums]) {
  if constexpr (kAIsE5M2) {
    ENGINE_MULTIPLY_FP8("e5m2");
  } else {
    ENGINE_MULTIPLY_FP8("e4m3");
  }
}
#undef ENGINE_MULTIPLY_FP8
#undef ENGINE_TEN
#undef ENGINE_FOUR_SUMS
#undef ENGINE_16_SUMS

// Four matrices of 8 × 8 16-bit numbers, as products leave them, to shared memory: lane l gives the address of row l % 8 of
// matrix l / 8.
__device__ __forceinline__ void StoreFourMatrices(std::uint32_t shared, const std::uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// The same way back, or each of them transposed.
__device__ __forceinline__ void LoadFourMatrices(std::uint32_t shared, std::uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void LoadFourTransposed(std::uint32_t shared, std::uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(shared)
               : "memory");
}

// Registers of each thread of the warpgroup, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace engine::backend::cuda::hopper

// Products of warpgroups (PTX ISA, "wgmma") of 64 rows and several widths, in bf16 and fp16: `Product<T, kN>` multiplies
// d[64, kN] by 1 or 0 and adds a[64, 16] · b[kN, 16]ᵀ, under way when it returns. Operands in shared memory are named as
// hopper::MatrixAt names them; kOuter: the summed dim is the outer one. An operand a may be in registers: the pairs of rows
// lane / 4 and eight further down of columns lane % 4 · 2, then the same of columns eight further on. Of d a thread has, of
// row 16·warp + lane / 4, columns 8·c + lane % 4 · 2 and the one behind it in d[4·c] and d[4·c + 1], and those of the row
// eight further down in d[4·c + 2] and d[4·c + 3].
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "engine/backend/cuda/kernels/hopper.cuh"

namespace engine::backend::cuda::hopper {

// Registers that products read and write are not touched by anything else between two of these.
template <int kCount>
__device__ __forceinline__ void PinAll(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void PinAll(std::uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

#define ENGINE_TEN_NAMES(a) \
  "%" #a "0,%" #a "1,%" #a "2,%" #a "3,%" #a "4,%" #a "5,%" #a "6,%" #a "7,%" #a "8,%" #a "9"
#define ENGINE_NAMES_16 ENGINE_TEN_NAMES() ",%10,%11,%12,%13,%14,%15"
#define ENGINE_NAMES_24 ENGINE_TEN_NAMES() "," ENGINE_TEN_NAMES(1) ",%20,%21,%22,%23"
#define ENGINE_NAMES_32 ENGINE_TEN_NAMES() "," ENGINE_TEN_NAMES(1) "," ENGINE_TEN_NAMES(2) ",%30,%31"
#define ENGINE_NAMES_48 \
  ENGINE_TEN_NAMES()    \
  "," ENGINE_TEN_NAMES(1) "," ENGINE_TEN_NAMES(2) "," ENGINE_TEN_NAMES(3) ",%40,%41,%42,%43,%44,%45,%46,%47"
#define ENGINE_NAMES_64                                                                         \
  ENGINE_TEN_NAMES()                                                                            \
  "," ENGINE_TEN_NAMES(1) "," ENGINE_TEN_NAMES(2) "," ENGINE_TEN_NAMES(3) "," ENGINE_TEN_NAMES( \
      4) "," ENGINE_TEN_NAMES(5) ",%60,%61,%62,%63"
#define ENGINE_NAMES_128 \
  ENGINE_TEN_NAMES()     \
  "," ENGINE_TEN_NAMES(1) "," ENGINE_TEN_NAMES(2) "," ENGINE_TEN_NAMES(3) "," ENGINE_TEN_NAMES(4) \
      "," ENGINE_TEN_NAMES(5) "," ENGINE_TEN_NAMES(6) "," ENGINE_TEN_NAMES(7) "," ENGINE_TEN_NAMES(8) \
          "," ENGINE_TEN_NAMES(9) "," ENGINE_TEN_NAMES(10) "," ENGINE_TEN_NAMES(11) \
              ",%120,%121,%122,%123,%124,%125,%126,%127"
#define ENGINE_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ENGINE_D16(i) ENGINE_4(i), ENGINE_4((i) + 4), ENGINE_4((i) + 8), ENGINE_4((i) + 12)
#define ENGINE_D_16 ENGINE_D16(0)
#define ENGINE_D_24 ENGINE_D_16, ENGINE_4(16), ENGINE_4(20)
#define ENGINE_D_32 ENGINE_D16(0), ENGINE_D16(16)
#define ENGINE_D_48 ENGINE_D_32, ENGINE_D16(32)
#define ENGINE_D_64 ENGINE_D_32, ENGINE_D16(32), ENGINE_D16(48)
#define ENGINE_D_128 ENGINE_D_64, ENGINE_D16(64), ENGINE_D16(80), ENGINE_D16(96), ENGINE_D16(112)

template <typename T, int kN>
struct Product;

// r0 to r6: the numbers of the operands behind those of d.
#define ENGINE_PRODUCT_OF(type, name, n, count, r0, r1, r2, r3, r4, r5, r6)                                  \
  template <>                                                                                                \
  struct Product<type, n> {                                                                                  \
    template <bool kAOuter, bool kBOuter>                                                                    \
    static __device__ __forceinline__ void Add(std::uint64_t a, std::uint64_t b, float (&d)[count],          \
                                               int add) {                                                    \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #r2                                              \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" ENGINE_NAMES_##count \
                   "}, %" #r0 ", %" #r1 ", add, 1, 1, %" #r3 ", %" #r4 ";\n}"                                \
                   : ENGINE_D_##count                                                                        \
                   : "l"(a), "l"(b), "r"(add), "n"(kAOuter ? 1 : 0), "n"(kBOuter ? 1 : 0));                  \
    }                                                                                                        \
    template <bool kBOuter>                                                                                  \
    static __device__ __forceinline__ void Add(std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,         \
                                               std::uint32_t a3, std::uint64_t b, float (&d)[count],         \
                                               int add) {                                                    \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #r5                                              \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " {" ENGINE_NAMES_##count \
                   "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", add, 1, 1, %" #r6 ";\n}"          \
                   : ENGINE_D_##count                                                                        \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(kBOuter ? 1 : 0));            \
    }                                                                                                        \
  };
#define ENGINE_PRODUCT(n, count, ...)                             \
  ENGINE_PRODUCT_OF(__nv_bfloat16, "bf16", n, count, __VA_ARGS__) \
  ENGINE_PRODUCT_OF(__half, "f16", n, count, __VA_ARGS__)
ENGINE_PRODUCT(32, 16, 16, 17, 18, 19, 20, 21, 22)
ENGINE_PRODUCT(48, 24, 24, 25, 26, 27, 28, 29, 30)
ENGINE_PRODUCT(64, 32, 32, 33, 34, 35, 36, 37, 38)
ENGINE_PRODUCT(96, 48, 48, 49, 50, 51, 52, 53, 54)
ENGINE_PRODUCT(128, 64, 64, 65, 66, 67, 68, 69, 70)
ENGINE_PRODUCT(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef ENGINE_PRODUCT
#undef ENGINE_PRODUCT_OF
#undef ENGINE_TEN_NAMES
#undef ENGINE_NAMES_16
#undef ENGINE_NAMES_24
#undef ENGINE_NAMES_32
#undef ENGINE_NAMES_48
#undef ENGINE_NAMES_64
#undef ENGINE_NAMES_128
#undef ENGINE_4
#undef ENGINE_D16
#undef ENGINE_D_16
#undef ENGINE_D_24
#undef ENGINE_D_32
#undef ENGINE_D_48
#undef ENGINE_D_64
#undef ENGINE_D_128

}  // namespace engine::backend::cuda::hopper

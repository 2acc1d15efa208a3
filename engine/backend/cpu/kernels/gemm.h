// One matrix product on the calling thread: c[m, n] = alpha · op(a)[m, k] · op(b)[k, n] + beta · c,
// row-major, with leading dims in elements; op transposes where the flag says so. With beta = 0, c is written
// and not read.
#pragma once

#include <cstdint>

namespace engine::backend::cpu {

template <typename T>
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  std::int64_t lda = 0;
  bool transpose_a = false;
  const T* b = nullptr;
  std::int64_t ldb = 0;
  bool transpose_b = false;
  T* c = nullptr;
  std::int64_t ldc = 0;
  T alpha = 1;
  T beta = 0;
};

void Run(const Gemm<float>& gemm);   // oneDNN
void Run(const Gemm<double>& gemm);  // three plain loops

}  // namespace engine::backend::cpu

#include "engine/backend/cpu/kernels/gemm.h"

#include <dnnl.h>

#include "engine/base/status.h"

// This function is the OpenMP runtime's, which oneDNN is linked with (OpenMP 5.0, 3.2.1). Not every compiler brings its header.
extern "C" void omp_set_num_threads(int threads);

namespace engine::backend::cpu {
namespace {

// oneDNN would start an OpenMP team for a large product; the kernels bring their own threads. The setting
// belongs to the calling thread.
void KeepToThisThread() {
  thread_local const bool once = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

void Run(const Gemm<float>& g) {
  KeepToThisThread();
  const dnnl_status_t status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k,
                                          g.alpha, g.a, g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  ENGINE_CHECK(status == dnnl_success, "dnnl_sgemm of {}x{}x{} returned {}", g.m, g.n, g.k,
               static_cast<int>(status));
}

void Run(const Gemm<double>& g) {
  const std::int64_t a_row = g.transpose_a ? 1 : g.lda;
  const std::int64_t a_column = g.transpose_a ? g.lda : 1;
  const std::int64_t b_row = g.transpose_b ? 1 : g.ldb;
  const std::int64_t b_column = g.transpose_b ? g.ldb : 1;
  for (std::int64_t i = 0; i < g.m; ++i) {
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < g.k; ++l)
        sum += g.a[i * a_row + l * a_column] * g.b[l * b_row + j * b_column];
      double& c = g.c[i * g.ldc + j];
      c = g.alpha * sum + (g.beta == 0 ? 0 : g.beta * c);
    }
  }
}

}  // namespace engine::backend::cpu

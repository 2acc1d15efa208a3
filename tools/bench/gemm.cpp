// Single-thread rates of the two libraries that Debian offers for float32 products: oneDNN's dnnl_sgemm and OpenBLAS'
// cblas_sgemm, on shapes of a small GPT. The reason for the choice in engine/backend/cpu/kernels/gemm.cpp.
//
//   g++ -O2 -std=c++20 tools/bench/gemm.cpp -o build/bench-gemm -ldnnl -ldl && OMP_NUM_THREADS=1 build/bench-gemm
#include <dlfcn.h>
#include <dnnl.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

struct Shape {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
};

// Best of five rounds of ten products, in GFLOP/s.
double Rate(const Shape& s, const std::function<void()>& product) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) product();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double rate = 10 * 2e-9 * static_cast<double>(s.m * s.n * s.k) / seconds;
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace

int main() {
  using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  const auto sgemm = library == nullptr ? nullptr : reinterpret_cast<CblasSgemm>(dlsym(library, "cblas_sgemm"));
  const auto set_threads = library == nullptr ? nullptr : reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  if (sgemm == nullptr || set_threads == nullptr) {
    std::fprintf(stderr, "libopenblas.so.0 is missing: tools/setup --bench installs it\n");
    return 1;
  }
  set_threads(1);
  std::printf("| m × n × k, transposed | oneDNN | OpenBLAS |\n|---|---|---|\n");
  for (const Shape& s : {Shape{2048, 1536, 384, false, true}, Shape{2048, 384, 1536, false, true},
                         Shape{2048, 384, 1536, false, false}, Shape{1536, 384, 2048, true, false},
                         Shape{1024, 1024, 1024, false, false}, Shape{64, 256, 64, false, true}}) {
    std::vector<float> a(static_cast<size_t>(s.m * s.k), 1.0F);
    std::vector<float> b(static_cast<size_t>(s.k * s.n), 1.0F);
    std::vector<float> c(static_cast<size_t>(s.m * s.n), 0.0F);
    const std::int64_t lda = s.transpose_a ? s.m : s.k;
    const std::int64_t ldb = s.transpose_b ? s.k : s.n;
    const double one_dnn = Rate(s, [&] {
      dnnl_sgemm(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m, s.n, s.k, 1.0F, a.data(), lda, b.data(),
                 ldb, 0.0F, c.data(), s.n);
    });
    const double open_blas = Rate(s, [&] {
      sgemm(101, s.transpose_a ? 112 : 111, s.transpose_b ? 112 : 111, static_cast<int>(s.m), static_cast<int>(s.n),
            static_cast<int>(s.k), 1.0F, a.data(), static_cast<int>(lda), b.data(), static_cast<int>(ldb), 0.0F,
            c.data(), static_cast<int>(s.n));
    });
    std::printf("| %ld × %ld × %ld %c%c | %.0f | %.0f |\n", s.m, s.n, s.k, s.transpose_a ? 'T' : 'N',
                s.transpose_b ? 'T' : 'N', one_dnn, open_blas);
  }
  return 0;
}

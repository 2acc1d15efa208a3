// The tests that need a GPU. Without one they are skipped: exit code 77.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/data/temp_dir.h"

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no GPU");
    return 77;
  }
  // The cuBLASLt algorithms that were timed fastest, kept for this process alone: runs whose bits are
  // compared must use the same ones, and no test may depend on what an earlier process chose.
  const engine::data::TempDir cache;
  setenv("ENGINE_CACHE", cache.path().c_str(), 1);
  return doctest::Context(argc, argv).run();
}

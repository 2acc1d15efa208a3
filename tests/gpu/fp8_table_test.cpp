// Every FP8 op has a kernel, and every kernel a test in the files before this one.
#include <doctest/doctest.h>

#include "engine/backend/cuda/launch/prepare_fp8.h"
#include "tests/gpu/fp8_testing.h"

namespace engine::gpu_test {

// Runs last: test cases run in the order of the files, by name.
TEST_CASE("gpu fp8: every kernel has a test") {
  if (Tested().empty()) return;  // this test case was run alone
  for (const auto& entry : backend::cuda::kFp8Kernels) {
    CHECK_MESSAGE(Tested().count(std::string(entry.op)) == 1, fmt::format("{} has no test", entry.op));
    CHECK_MESSAGE(backend::cuda::FindKernel(entry.op) != nullptr,
                  fmt::format("{} is not in the table", entry.op));
  }
  for (const graph::OpDef* op : ops::AllFp8Ops())
    CHECK_MESSAGE(backend::cuda::FindKernel(op->name) != nullptr, fmt::format("{} has no kernel", op->name));
}

}  // namespace engine::gpu_test

// Every FP8 op has a kernel, and every kernel a test in the files before this one.
#include <doctest/doctest.h>

#include "engine/backend/cuda/launch/prepare.h"
#include "tests/gpu/fp8_testing.h"

namespace engine::gpu_test {

// Runs last: test cases run in the order of the files, by name.
TEST_CASE("gpu fp8: every kernel has a test") {
  if (Tested().empty()) return;  // this test case was run alone
  std::vector<std::string_view> kernels = {"fp8_update"};
  for (const graph::OpDef* op : ops::AllFp8Ops()) kernels.push_back(op->name);
  for (std::string_view kernel : kernels) {
    CHECK_MESSAGE(Tested().count(std::string(kernel)) == 1, fmt::format("{} has no test", kernel));
    CHECK_MESSAGE(backend::cuda::FindKernel(kernel) != nullptr, fmt::format("{} has no kernel", kernel));
  }
}

}  // namespace engine::gpu_test

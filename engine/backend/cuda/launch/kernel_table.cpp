#include <algorithm>
#include <array>

#include "engine/backend/cuda/launch/prepare.h"

namespace engine::backend::cuda {

const KernelEntry* FindKernel(std::string_view op) {
  static constexpr std::array kKernels = {
#define KERNEL(op, name) KernelEntry{#op, Prepare##name},
#define KERNEL_SCRATCH(op, name, scratch) KERNEL(op, name)
#include "engine/backend/cuda/profile/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH
  };
  const auto* entry =
      std::find_if(kKernels.begin(), kKernels.end(), [&](const auto& e) { return e.op == op; });
  return entry == kKernels.end() ? nullptr : entry;
}

}  // namespace engine::backend::cuda

#include "engine/backend/cpu/kernel_table.h"

#include <array>

#include "engine/backend/cpu/kernels/kernels.h"
#include "engine/base/status.h"

namespace engine::backend::cpu {

std::span<const KernelEntry> AllKernels() {
  static constexpr std::array kKernels = {
#define KERNEL(op, name) KernelEntry{#op, name<float>, name<double>},
#define KERNEL_SCRATCH(op, name, scratch) KernelEntry{#op, name<float>, name<double>, scratch},
#define KERNEL_BYTES(op, name) KernelEntry{#op, name, name},
#include "engine/backend/cpu/kernels/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH
#undef KERNEL_BYTES
  };
  return kKernels;
}

const KernelEntry* FindKernel(std::string_view op) {
  for (const KernelEntry& entry : AllKernels()) {
    if (entry.op == op) return &entry;
  }
  return nullptr;
}

Kernel KernelFor(const KernelEntry& entry, std::span<const TensorView> inputs,
                 std::span<const TensorView> outputs) {
  for (const TensorView& input : inputs) {
    if (input.dtype == DType::kF32) return entry.f32;
    if (input.dtype == DType::kF64) return entry.f64;
  }
  ENGINE_CHECK(!outputs.empty(), "{} has no floating-point tensor", entry.op);
  return outputs[0].dtype == DType::kF64 ? entry.f64 : entry.f32;
}

}  // namespace engine::backend::cpu

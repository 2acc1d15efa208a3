// The CPU kernels by op name: the ops of engine/ops, and the flat kernels of the optimizer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

using Kernel = void (*)(const KernelArgs&);

// Bytes of KernelArgs::scratch for one instruction on tensors of these local types. Never depends on the
// threads.
using ScratchRule = std::int64_t (*)(std::span<const graph::TensorType> inputs,
                                     std::span<const graph::TensorType> outputs,
                                     const graph::Attributes& attributes);

struct KernelEntry {
  std::string_view op;
  Kernel f32 = nullptr;
  Kernel f64 = nullptr;                 // for finite differences: same code, plain products
  ScratchRule scratch_bytes = nullptr;  // null: none
};

// Null if there is none of that name.
const KernelEntry* FindKernel(std::string_view op);

std::span<const KernelEntry> AllKernels();

// The form for these tensors: that of the first floating-point input, or of output 0 where no input is one.
Kernel KernelFor(const KernelEntry& entry, std::span<const TensorView> inputs,
                 std::span<const TensorView> outputs);

}  // namespace engine::backend::cpu

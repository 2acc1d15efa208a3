// Every CPU kernel. T is the type of the activations and the statistics, float or double; an op's meaning is
// the doc block of engine/ops/<same file>. A kernel's result does not depend on the number of threads.
#pragma once

#include "engine/backend/kernel.h"

namespace engine::backend::cpu {

#define KERNEL(op, name) \
  template <typename T>  \
  void name(const KernelArgs& args);
#define KERNEL_SCRATCH(op, name, scratch) KERNEL(op, name)
#define KERNEL_BYTES(op, name) void name(const KernelArgs& args);
#include "engine/backend/cpu/kernels/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH
#undef KERNEL_BYTES

// Scratch of the kernels that need some (KernelEntry::scratch_bytes).
using Types = std::span<const graph::TensorType>;
std::int64_t AttentionGradScratch(Types inputs, Types outputs, const graph::Attributes& attributes);
std::int64_t NormGradScratch(Types inputs, Types outputs, const graph::Attributes& attributes);
std::int64_t ExpertPassesScratch(Types inputs, Types outputs, const graph::Attributes& attributes);
std::int64_t ExpertPassesGradScratch(Types inputs, Types outputs, const graph::Attributes& attributes);
std::int64_t SumSquaresScratch(Types inputs, Types outputs, const graph::Attributes& attributes);

}  // namespace engine::backend::cpu

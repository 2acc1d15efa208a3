// Bytes of scratch that the CUDA kernels ask the planner for. No CUDA header: plans are made on machines
// without GPUs. Each rule is the contract of the kernel of that name: it never uses more than it says, and
// Prepare fails where a library asks for more.
#pragma once

#include <cstdint>

#include "engine/graph/op.h"

namespace engine::backend::cuda {

using Types = graph::TypeSpan;

// cuBLASLt's workspace: split-K algorithms use up to 52 MB on GPT-2's shapes.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{64} << 20;

// For kernels that make the same bits each time, or not.
using ScratchRule = std::int64_t (*)(Types inputs, Types outputs, const graph::Attributes& attributes,
                                     bool deterministic);

#define KERNEL(op, name)
#define KERNEL_SCRATCH(op, name, scratch)                                                         \
  std::int64_t scratch##Scratch(Types inputs, Types outputs, const graph::Attributes& attributes, \
                                bool deterministic);
#include "engine/backend/cuda/profile/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH

}  // namespace engine::backend::cuda

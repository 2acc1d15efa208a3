// Bytes of scratch that the CUDA kernels ask the planner for. No CUDA header: plans are made on machines
// without GPUs. Each rule is the contract of the kernel of that name: it never uses more than it says, and
// Prepare fails where a library asks for more.
#pragma once

#include <cstdint>

#include "engine/base/units.h"
#include "engine/graph/op.h"

namespace engine::backend::cuda {

using Types = graph::TypeSpan;

// What of a GPU, and of this program, decides which kernels carry something out.
struct CudaChip {
  int major = 9;       // of its compute capability
  bool hopper = true;  // kernels for sm_90a run on it, and the program has them
};
struct CudaTarget {
  bool deterministic = true;  // kernels that make the same bits each time
  CudaChip chip = {};
};

// cuBLASLt's workspace: split-K algorithms use up to 52 MB on GPT-2's shapes.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{64} << 20;

// Where parts of scratch begin: at multiples of 256 bytes.
inline std::int64_t Aligned(std::int64_t bytes) { return RoundUp(bytes, 256); }

using ScratchRule = std::int64_t (*)(Types inputs, Types outputs, const graph::Attributes& attributes,
                                     const CudaTarget& target);

#define KERNEL(op, name)
#define KERNEL_SCRATCH(op, name, scratch)                                                         \
  std::int64_t scratch##Scratch(Types inputs, Types outputs, const graph::Attributes& attributes, \
                                const CudaTarget& target);
#include "engine/backend/cuda/profile/kernels.list"
#undef KERNEL
#undef KERNEL_SCRATCH

}  // namespace engine::backend::cuda

#include "engine/backend/cuda/profile/scratch_experts.h"

#include "engine/backend/cuda/profile/scratch.h"
#include "engine/graph/windows.h"

namespace engine::backend::cuda {

// Inputs choice [b, …, k], count [b, E]: how many choices of each chunk fall on each expert, i32 [E, chunks].
std::int64_t PlaceScratch(Types inputs, Types, const graph::Attributes&, const CudaTarget&) {
  const std::int64_t chunks = (inputs[0].shape.elements() + kPlaceChunk - 1) / kPlaceChunk;
  return inputs[1].shape[1] * chunks * SizeOf(DType::kI32);
}

namespace {

// Inputs x, weight, choice, choice_of, row_of, groups, w1, w2 (ops/expert_passes.cpp): the buffers of a window; backward also the
// order of the experts.
std::int64_t PassesScratch(Types inputs, const graph::Attributes& attributes, bool backward) {
  const graph::WindowSizes sizes = graph::SizesOfWindows(inputs[2].shape, inputs[3].shape, inputs[6].shape,
                                                         inputs[7].shape, attributes.Int("passes"));
  graph::ScratchPlaces scratch;
  const graph::WindowBuffers buffers(sizes, SizeOf(inputs[0].dtype), backward, &scratch);
  if (backward) scratch.Take(sizes.experts, SizeOf(DType::kI32));
  return scratch.bytes();
}

}  // namespace

std::int64_t ExpertPassesScratch(Types inputs, Types, const graph::Attributes& attributes,
                                 const CudaTarget&) {
  return PassesScratch(inputs, attributes, false);
}
std::int64_t ExpertPassesGradScratch(Types inputs, Types, const graph::Attributes& attributes,
                                     const CudaTarget&) {
  return PassesScratch(inputs, attributes, true);
}

// One f64 for each block of the first phase; the number decides the order of the sum.
std::int64_t RouterLossScratch(Types, Types, const graph::Attributes&, const CudaTarget&) {
  constexpr std::int64_t kBlocks = 1024;
  return kBlocks * static_cast<std::int64_t>(sizeof(double));
}

}  // namespace engine::backend::cuda

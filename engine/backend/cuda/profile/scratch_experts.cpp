#include "engine/backend/cuda/profile/scratch_experts.h"

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

// Inputs choice [b, …, k], count [b, E]: how many choices of each chunk fall on each expert, i32 [E, chunks].
std::int64_t PlaceScratch(Types inputs, Types, const graph::Attributes&, bool) {
  const std::int64_t chunks = (inputs[0].shape.elements() + kPlaceChunk - 1) / kPlaceChunk;
  return inputs[1].shape[1] * chunks * SizeOf(DType::kI32);
}

// One f64 for each block of the first phase; the number decides the order of the sum.
std::int64_t RouterLossScratch(Types, Types, const graph::Attributes&, bool) {
  constexpr std::int64_t kBlocks = 1024;
  return kBlocks * static_cast<std::int64_t>(sizeof(double));
}

}  // namespace engine::backend::cuda

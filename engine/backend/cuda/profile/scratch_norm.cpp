#include "engine/backend/cuda/profile/column_sums.h"
#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

// Outputs: dx, then one sum over rows after another, then the norm's output if there is one.
std::int64_t NormGradScratch(Types, Types outputs, const graph::Attributes& attributes, const CudaTarget&) {
  const std::int64_t columns = outputs[1].shape.elements();
  const NormGradGrid grid = MakeNormGradGrid(outputs[0].shape.elements() / columns, columns);
  const std::int64_t others = attributes.Int("again", 0) != 0 ? 2 : 1;
  return grid.blocks * (static_cast<std::int64_t>(outputs.size()) - others) * columns * SizeOf(DType::kF32);
}

}  // namespace engine::backend::cuda

#include "engine/backend/cuda/profile/column_sums.h"
#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

std::int64_t BiasGradScratch(Types inputs, Types outputs, const graph::Attributes&, const CudaTarget&) {
  const std::int64_t columns = outputs[0].shape.elements();
  const BiasGradGrid grid = MakeBiasGradGrid(inputs[0].shape.elements() / columns, columns);
  return grid.chunks * columns * SizeOf(DType::kF32);
}

// Outputs d_pre, y[, d_bias].
std::int64_t GeluGradAgainScratch(Types inputs, Types outputs, const graph::Attributes&, const CudaTarget&) {
  if (outputs.size() < 3) return 0;
  const std::int64_t columns = outputs[2].shape.elements();
  const BiasGradGrid grid = MakeShortGrid(inputs[0].shape.elements() / columns, columns);
  return grid.chunks * columns * SizeOf(DType::kF32);
}

// Outputs dx, d_bias.
std::int64_t DropoutGradBiasScratch(Types inputs, Types outputs, const graph::Attributes&,
                                    const CudaTarget&) {
  const std::int64_t columns = outputs[1].shape.elements();
  const BiasGradGrid grid = MakeShortGrid(inputs[0].shape.elements() / columns, columns);
  return grid.chunks * columns * SizeOf(DType::kF32);
}

}  // namespace engine::backend::cuda

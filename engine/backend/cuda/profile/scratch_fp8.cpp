#include "engine/backend/cuda/profile/scratch.h"

#include "engine/backend/cuda/profile/quantize_grid.h"

namespace engine::backend::cuda {

namespace {

// Of the sum d_bias[C], output `bias`, beside qt[C, T].
std::int64_t BiasBytes(Types outputs, size_t bias) {
  if (outputs.size() <= bias) return 0;
  const std::int64_t columns = outputs[bias].shape.elements();
  return QuantizeLines(outputs[1].shape.elements() / columns) * columns * SizeOf(DType::kF32);
}

}  // namespace

std::int64_t QuantizeScratch(Types, Types outputs, const graph::Attributes&, const CudaTarget&) {
  return BiasBytes(outputs, 2);
}
std::int64_t QuantizeCurrentScratch(Types, Types outputs, const graph::Attributes&, const CudaTarget&) {
  return BiasBytes(outputs, 3);
}

// Inputs x, branch, gamma, ….
std::int64_t AddNormQuantizeScratch(Types inputs, Types, const graph::Attributes&, const CudaTarget&) {
  if (NormFitsStrip(inputs[2].shape.elements())) return 0;
  return inputs[0].shape.elements() * SizeOf(inputs[0].dtype);
}

// Outputs dx, q, qt, then one sum over rows after another.
std::int64_t NormGradQuantizeScratch(Types, Types outputs, const graph::Attributes&, const CudaTarget&) {
  const std::int64_t columns = outputs[3].shape.elements();
  const std::int64_t lines = NormGradQuantizeLines(outputs[0].shape.elements() / columns, columns);
  return lines * static_cast<std::int64_t>(outputs.size() - 3) * columns * SizeOf(DType::kF32);
}

}  // namespace engine::backend::cuda

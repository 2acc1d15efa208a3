#include "engine/backend/cuda/profile/scratch_linear.h"

#include <algorithm>

#include "engine/backend/cuda/profile/column_sums.h"
#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

std::int64_t GemmScratch(Types, Types, const graph::Attributes&, const CudaTarget&) {
  return kGemmWorkspaceBytes;
}

LinearCrossEntropyLayout LayoutOf(const graph::TensorType& x, const graph::TensorType& w,
                                  const graph::Attributes& attributes) {
  const std::int64_t contracted = w.shape[w.shape.rank() - 1];
  const std::int64_t classes = w.shape.elements() / contracted;
  const std::int64_t tokens = x.shape.elements() / contracted;
  LinearCrossEntropyLayout layout;
  layout.chunk = std::clamp<std::int64_t>(attributes.Int("chunk"), 1, std::max<std::int64_t>(tokens, 1));
  layout.logits = kGemmWorkspaceBytes;
  layout.losses = layout.logits + Aligned(layout.chunk * classes * SizeOf(x.dtype));
  layout.d_bias = layout.losses + Aligned(tokens * SizeOf(DType::kF32));
  layout.bytes = layout.d_bias;
  if (attributes.Int("bias", 0) == 0) return layout;
  // Of a whole chunk and of the last one: fewer rows may make more partial sums.
  const std::int64_t sums = std::max(MakeBiasGradGrid(layout.chunk, classes).chunks,
                                     MakeBiasGradGrid(tokens % layout.chunk, classes).chunks);
  layout.bytes += Aligned(sums * classes * SizeOf(DType::kF32));
  return layout;
}

std::int64_t LinearCrossEntropyScratch(Types inputs, Types, const graph::Attributes& attributes,
                                       const CudaTarget&) {
  return LayoutOf(inputs[0], inputs[1], attributes).bytes;
}

LinearCrossEntropyFp8Layout Fp8LayoutOf(const graph::TensorType& x, const graph::TensorType& w,
                                        const graph::Attributes& attributes) {
  LinearCrossEntropyFp8Layout layout;
  layout.plain = LayoutOf(x, w, attributes);
  layout.bytes = layout.plain.bytes;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t offset = layout.bytes;
    layout.bytes += Aligned(bytes);
    return offset;
  };
  const std::int64_t features = w.shape[w.shape.rank() - 1];
  const std::int64_t classes = w.shape.elements() / features;
  layout.x = take(layout.plain.chunk * features);
  layout.xt = take(layout.plain.chunk * features);
  layout.d = take(layout.plain.chunk * classes);
  layout.dt = take(layout.plain.chunk * classes);
  layout.x_state = take(8 * SizeOf(DType::kF32));
  layout.d_state = take(8 * SizeOf(DType::kF32));
  return layout;
}

std::int64_t LinearCrossEntropyFp8Scratch(Types inputs, Types, const graph::Attributes& attributes,
                                          const CudaTarget&) {
  return Fp8LayoutOf(inputs[0], inputs[1], attributes).bytes;
}

namespace {

// twice_bytes: of an element of `twice`.
RouterLinearLayout LayoutOfRouter(std::int64_t m, std::int64_t out, std::int64_t in,
                                  std::int64_t twice_bytes) {
  RouterLinearLayout layout = {.m = m, .out = out, .in = in};
  layout.parts = kGemmWorkspaceBytes;
  layout.twice = layout.parts + Aligned(2 * m * out * SizeOf(DType::kBF16));
  layout.bytes = layout.twice + Aligned(2 * out * in * twice_bytes);
  return layout;
}

// Of the contracted dims, the last of w and of x.
std::int64_t FeaturesOf(const graph::TensorType& type, const graph::Attributes& attributes) {
  const int rank = type.shape.rank();
  return type.shape.elements(rank - static_cast<int>(attributes.Int("in_dims")), rank);
}

}  // namespace

bool CutsGradient(const graph::TensorType& dy, const graph::TensorType& operand) {
  return dy.dtype == DType::kF32 && (operand.dtype == DType::kBF16 || operand.dtype == DType::kF16);
}

RouterLinearLayout LayoutOfRouterDgrad(const graph::TensorType& dy, const graph::TensorType& w,
                                       const graph::Attributes& attributes) {
  const std::int64_t in = FeaturesOf(w, attributes);
  const std::int64_t out = w.shape.elements() / in;
  return LayoutOfRouter(dy.shape.elements() / out, out, in, SizeOf(w.dtype));
}

RouterLinearLayout LayoutOfRouterWgrad(const graph::TensorType& dy, const graph::TensorType& x,
                                       const graph::Attributes& attributes) {
  const std::int64_t in = FeaturesOf(x, attributes);
  const std::int64_t m = x.shape.elements() / in;
  return LayoutOfRouter(m, dy.shape.elements() / m, in, SizeOf(DType::kF32));
}

std::int64_t LinearDgradScratch(Types inputs, Types, const graph::Attributes& attributes, const CudaTarget&) {
  if (!CutsGradient(inputs[0], inputs[1])) return kGemmWorkspaceBytes;
  return LayoutOfRouterDgrad(inputs[0], inputs[1], attributes).bytes;
}

std::int64_t LinearWgradScratch(Types inputs, Types, const graph::Attributes& attributes, const CudaTarget&) {
  if (!CutsGradient(inputs[0], inputs[1])) return kGemmWorkspaceBytes;
  return LayoutOfRouterWgrad(inputs[0], inputs[1], attributes).bytes;
}

}  // namespace engine::backend::cuda

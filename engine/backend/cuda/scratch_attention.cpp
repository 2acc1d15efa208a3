#include "engine/backend/cuda/scratch_attention.h"

#include <algorithm>

namespace engine::backend::cuda {
namespace {

// What cuDNN asks for beside the large parts: 256 bytes in 9.19.
constexpr std::int64_t kMarginBytes = std::int64_t{1} << 20;

std::int64_t Aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

void SetAttributes(const graph::Attributes& attributes, AttentionShape* shape) {
  shape->window = attributes.Int("window", 0);
  shape->dropout = attributes.Has("dropout") ? attributes.Float("dropout") : 0.0;
}

// Of one query head of one sample, in cuDNN's workspace (9.19's own numbers): the deterministic form keeps
// the gradients of the scores in 2 bytes each; with grouped queries dk and dv of each query head stand there
// before they are summed.
std::int64_t WorkspaceBytes(const AttentionShape& shape, bool deterministic) {
  const std::int64_t scores = deterministic ? shape.queries * shape.keys * 2 : 0;
  const std::int64_t key_gradients =
      shape.group() > 1 ? 2 * shape.keys * shape.head * SizeOf(shape.dtype) : 0;
  return scores + key_gradients;
}
// dq in fp32.
std::int64_t AccumulatorBytes(const AttentionShape& shape, bool deterministic) {
  return deterministic ? 0 : shape.queries * shape.head * SizeOf(DType::kF32);
}

// `total` in the fewest parts of at most `most`, evenly.
std::int64_t EvenPart(std::int64_t total, std::int64_t most) {
  const std::int64_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

std::int64_t GradScratch(const AttentionShape& shape) {
  // The reference kernels' Σ_E d_o·o.
  std::int64_t bytes = Aligned(shape.batch * shape.heads * shape.queries * SizeOf(DType::kF32));
  if (!CudnnCarriesOut(shape)) return bytes;
  for (const bool deterministic : {false, true}) {
    bytes = std::max(bytes, CudnnGradLayout(shape, deterministic).bytes);
  }
  return bytes;
}

}  // namespace

AttentionShape ShapeOfSeparate(const graph::TensorType& q, const graph::TensorType& k,
                               const graph::Attributes& attributes) {
  AttentionShape shape{.batch = q.shape[0],
                       .queries = q.shape[1],
                       .keys = k.shape[1],
                       .heads = q.shape[2],
                       .kv_heads = k.shape[2],
                       .head = q.shape[3],
                       .dtype = q.dtype};
  SetAttributes(attributes, &shape);
  return shape;
}

AttentionShape ShapeOfPacked(const graph::TensorType& qkv, const graph::Attributes& attributes) {
  AttentionShape shape{.batch = qkv.shape[0],
                       .queries = qkv.shape[1],
                       .keys = qkv.shape[1],
                       .heads = qkv.shape[2] * (qkv.shape[3] - 2),
                       .kv_heads = qkv.shape[2],
                       .head = qkv.shape[4],
                       .dtype = qkv.dtype,
                       .packed = true};
  SetAttributes(attributes, &shape);
  return shape;
}

// Fewer queries than keys are a slice of the sequence, whose place in it the graph's mask does not know.
bool CudnnCarriesOut(const AttentionShape& shape) {
  return (shape.dtype == DType::kBF16 || shape.dtype == DType::kF16) && shape.queries == shape.keys &&
         shape.queries % 128 == 0 && shape.head % 8 == 0 && shape.head >= 64 && shape.head <= 256 &&
         shape.dropout == 0 && (shape.window == 0 || shape.window >= shape.keys);
}

AttentionGroup ForwardGroup(const AttentionShape& shape) {
  // Packed, the query heads of one kv head are evenly spaced, those of several are not unless each has one.
  const bool evenly_spaced = !shape.packed || shape.group() == 1;
  return {shape.batch, evenly_spaced ? shape.kv_heads : 1};
}

AttentionGroup BackwardGroup(const AttentionShape& shape, bool deterministic) {
  const AttentionGroup whole = ForwardGroup(shape);
  const std::int64_t kv_head_bytes =
      shape.group() * (WorkspaceBytes(shape, deterministic) + AccumulatorBytes(shape, deterministic));
  const std::int64_t fitting = std::max<std::int64_t>(kGradGroupBytes / kv_head_bytes, 1);
  if (fitting >= whole.kv_heads) {
    return {EvenPart(whole.samples, std::min(fitting / whole.kv_heads, whole.samples)), whole.kv_heads};
  }
  return {1, EvenPart(whole.kv_heads, fitting)};
}

AttentionGradLayout CudnnGradLayout(const AttentionShape& shape, bool deterministic) {
  const AttentionGroup group = BackwardGroup(shape, deterministic);
  const std::int64_t heads = group.samples * group.kv_heads * shape.group();
  AttentionGradLayout layout;
  layout.workspace_bytes = Aligned(heads * WorkspaceBytes(shape, deterministic) + kMarginBytes);
  layout.row_sums = layout.workspace_bytes;
  layout.accumulator = layout.row_sums + Aligned(heads * shape.queries * SizeOf(DType::kF32));
  layout.bytes = layout.accumulator + Aligned(heads * AccumulatorBytes(shape, deterministic));
  return layout;
}

ENGINE_CUDA_SCRATCH(Attention) {
  (void)outputs;
  return CudnnCarriesOut(ShapeOfSeparate(inputs[0], inputs[1], attributes)) ? kMarginBytes : 0;
}
ENGINE_CUDA_SCRATCH(AttentionGrad) {
  (void)outputs;
  return GradScratch(ShapeOfSeparate(inputs[0], inputs[1], attributes));
}
ENGINE_CUDA_SCRATCH(AttentionPacked) {
  (void)outputs;
  return CudnnCarriesOut(ShapeOfPacked(inputs[0], attributes)) ? kMarginBytes : 0;
}
ENGINE_CUDA_SCRATCH(AttentionPackedGrad) {
  (void)outputs;
  return GradScratch(ShapeOfPacked(inputs[0], attributes));
}

}  // namespace engine::backend::cuda

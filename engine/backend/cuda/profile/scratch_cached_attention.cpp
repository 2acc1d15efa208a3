#include "engine/backend/cuda/profile/scratch_cached_attention.h"

#include "engine/backend/cuda/profile/scratch_attention.h"

namespace engine::backend::cuda {
namespace {

constexpr std::string_view kCached = "cached_attention";

// What attention does with a cache's keys and values.
AttentionShape ShapeOfCached(Types inputs, const graph::Attributes& attributes) {
  AttentionShape shape = ShapeOfSeparate(inputs.first(3), attributes, /*backward=*/false);
  shape.keys = inputs[3].shape[1];
  shape.sinks = HasSinks(inputs);
  return shape;
}

}  // namespace

std::int64_t CachedAttentionScratch(Types inputs, Types, const graph::Attributes& attributes,
                                    const CudaTarget&) {
  if (attributes.Int("invariant", 0) != 0)
    return LayOutInvariant(inputs[0].shape, inputs[1].shape, HasSinks(inputs)).bytes;
  return CutCachedAttention(inputs[0].shape, inputs[3].shape, inputs[4].shape,
                            inputs[3].dtype != inputs[0].dtype)
      .scratch_bytes;
}

std::string_view WhyNotInvariant(std::string_view kernel, Types inputs, const graph::Attributes& attributes,
                                 const CudaChip& chip) {
  const AttentionOp* const op = FindAttentionOp(kernel);
  AttentionShape shape =
      kernel == kCached ? ShapeOfCached(inputs, attributes) : ShapeOf(*op, inputs, attributes);
  shape.chip = chip;
  // What a bias adds is rounded otherwise in another row of a tile.
  if (shape.alibi) return "attention with linear biases";
  if (shape.distance > 0) return "attention with biases by distance";
  if (shape.pairs > 0) return "attention with a bias for each pair";
  // Blocks of keys begin at multiples of a sample's positions, and not of a document's.
  if (shape.spans) return "attention within documents";
  return WhyNotOwn(shape);
}

}  // namespace engine::backend::cuda

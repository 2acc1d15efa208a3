#include "engine/backend/cuda/profile/scratch_tokens.h"

#include "engine/backend/cuda/profile/scratch.h"

namespace engine::backend::cuda {

EmbeddingGradLayout LayoutOfEmbeddingGrad(std::int64_t tokens, std::int64_t columns) {
  EmbeddingGradLayout layout;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t offset = layout.bytes;
    layout.bytes += (bytes + 255) / 256 * 256;
    return offset;
  };
  const std::int64_t pieces = (tokens + kEmbeddingPiece - 1) / kEmbeddingPiece;
  layout.rows = take(tokens * 4);
  layout.tokens = take(tokens * 4);
  layout.sorted_rows = take(tokens * 4);
  layout.sorted_tokens = take(tokens * 4);
  layout.partial = take(pieces * 2 * columns * 4);
  // A radix sort of T pairs of 32-bit numbers keeps a second copy of them (8·T bytes), counts of 256 digits
  // for each tile of at least 1024 pairs (T bytes), and some histograms. Prepare compares this with cub's own
  // answer.
  layout.sort_bytes = 10 * tokens + (std::int64_t{256} << 10);
  layout.sort = take(layout.sort_bytes);
  return layout;
}

// Inputs ids [B, S], dy [B, S, D].
std::int64_t EmbeddingGradScratch(Types inputs, Types, const graph::Attributes&, const CudaTarget&) {
  const Shape& dy = inputs[1].shape;
  return LayoutOfEmbeddingGrad(inputs[0].shape.elements(), dy[dy.rank() - 1]).bytes;
}

// One f64 for each block of the first phase; the number decides the order of the sum.
std::int64_t LossSumScratch(Types, Types, const graph::Attributes&, const CudaTarget&) {
  constexpr std::int64_t kBlocks = 128;
  return kBlocks * static_cast<std::int64_t>(sizeof(double));
}

}  // namespace engine::backend::cuda

// What attention works on and where its backward pass keeps what: the scratch rules and the launchers read
// the same. B batch, S queries, T keys, H heads, K kv heads, E elements of a head.
#pragma once

#include <cstdint>

#include "engine/backend/cuda/scratch.h"

namespace engine::backend::cuda {

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head = 0;
  DType dtype = DType::kF32;
  // q, k and v are one tensor [B, S, K, J, E], J = H/K + 2.
  bool packed = false;
  std::int64_t window = 0;
  double dropout = 0;

  std::int64_t group() const { return heads / kv_heads; }
};

// Of attention and attention_grad, whose first inputs are q and k.
AttentionShape ShapeOfSeparate(const graph::TensorType& q, const graph::TensorType& k,
                               const graph::Attributes& attributes);
// Of attention_packed and attention_packed_grad.
AttentionShape ShapeOfPacked(const graph::TensorType& qkv, const graph::Attributes& attributes);

// Whether cuDNN carries it out; kernels/attention_reference.h does the rest.
bool CudnnCarriesOut(const AttentionShape& shape);

// cuDNN's deterministic backward pass holds all B·H·S² gradients of scores: 2 GiB for 32 heads of two
// sequences of 4096 tokens.
inline constexpr std::int64_t kGradGroupBytes = std::int64_t{4608} << 20;

// The part of the batch and of the heads that one cuDNN execution works on.
struct AttentionGroup {
  std::int64_t samples = 0;
  std::int64_t kv_heads = 0;
};
AttentionGroup ForwardGroup(const AttentionShape& shape);
// As large as kGradGroupBytes of scratch allow, but at least one sample and kv head. The last group of
// samples or of heads may be smaller.
AttentionGroup BackwardGroup(const AttentionShape& shape, bool deterministic);

// Offsets in bytes, all multiples of 256; cuDNN's workspace stands at 0.
struct AttentionGradLayout {
  std::int64_t workspace_bytes = 0;  // what cuDNN may ask for
  std::int64_t row_sums = 0;         // Σ_E d_o·o of a group, fp32
  std::int64_t accumulator = 0;      // dq of a group, fp32; unused by the deterministic form
  std::int64_t bytes = 0;
};
AttentionGradLayout CudnnGradLayout(const AttentionShape& shape, bool deterministic);

}  // namespace engine::backend::cuda

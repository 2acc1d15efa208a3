// What attention works on and where its backward pass keeps what: the scratch rules and the launchers read
// the same. B batch, S queries, T keys, H heads, K kv heads, E elements of a head, U of a head of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/backend/cuda/profile/attention_tiles.h"
#include "engine/backend/cuda/profile/scratch.h"
#include "engine/base/extent.h"
#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::backend::cuda {

// What the gradients of scores, and what stands beside them, may take of a group. cuDNN's deterministic
// backward pass holds all B·H·S·T of them: 4 GiB for 32 heads of four sequences of 4096 tokens, which fill a GPU as well as
// eight do (docs/performance.md).
inline constexpr std::int64_t kGradGroupBytes = std::int64_t{4608} << 20;

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head = 0;        // elements of q and k
  std::int64_t value_head = 0;  // of v and o
  DType dtype = DType::kF32;
  // q, k and v are one tensor [B, S, K, J, E], J = H/K + 2.
  bool packed = false;
  std::int64_t window = 0;  // shorter than the keys; 0: none
  double scale = 1;
  double dropout = 0;
  double softcap = 0;  // 0: none
  bool alibi = false;  // scores have linear biases
  std::int64_t distance =
      0;  // of the farthest key with a bias of its own, where scores have biases by distance; 0: they have none
  std::int64_t pairs = 0;  // places whose pairs have a bias each; 0: they have none
  bool sinks = false;      // beside the keys
  bool causal = true;      // the mask: causal, or none
  bool spans = false;      // queries see keys of their document alone
  CudaChip chip = {};
  std::int64_t grad_group_bytes = kGradGroupBytes;  // attribute of that name: tests make it small
  // Attribute of that name: the kernels that tests ask for, "cudnn" or "reference"; empty: the fastest.
  std::string_view kernel = {};

  std::int64_t group() const { return heads / kv_heads; }
};

// Of attention and attention_grad (`backward`), whose first inputs are q, k and v.
AttentionShape ShapeOfSeparate(Types inputs, const graph::Attributes& attributes, bool backward);
// Of attention_packed and attention_packed_grad, whose first input is the packed tensor.
AttentionShape ShapeOfPacked(Types inputs, const graph::Attributes& attributes, bool backward);

// The four ops that attention kernels carry out.
struct AttentionOp {
  std::string_view name;
  bool packed, backward;
};
// Null: `kernel` is none of them.
const AttentionOp* FindAttentionOp(std::string_view kernel);
AttentionShape ShapeOf(const AttentionOp& op, Types inputs, const graph::Attributes& attributes);

// What keeps it out of each family of fast kernels, of which there is a table (scratch_attention.cpp): the first of it in
// words, a string literal ("attention with dropout"); empty: the family carries it out. Sizes and types come before forms of
// scores, which the other family has for some sizes.
std::string_view WhyNotCudnn(const AttentionShape& shape);
std::string_view WhyNotOwn(const AttentionShape& shape);  // our own kernels for Hopper (attention/sm90a.h)
inline bool OwnCarriesOut(const AttentionShape& shape) { return WhyNotOwn(shape).empty(); }

// All of it, of all families. Empty where one of them carries it out, and where there are none to be kept out of: for float32,
// and on a GPU that is older than all of them.
std::vector<plan::Obstacle> ObstaclesOf(const AttentionShape& shape);

// What carries attention out. Of our own kernels for heads of up to 128 elements the backward pass is as fast as cuDNN's with
// bits that do not repeat, or faster, and needs no scratch that grows with the square of the sequence; the forward pass is
// behind with heads of 64 in short sequences, elsewhere alike or a little ahead, which timing finds, and ahead within windows. Those for wider heads are for what cuDNN lacks (docs/performance.md).
enum class AttentionKernels : std::uint8_t { kReference, kCudnn, kOwn };
AttentionKernels KernelsOf(const AttentionShape& shape, bool backward);

// Of the attribute that asks for these kernels (AttentionShape::kernel): "own", "cudnn" or "reference".
std::string_view AttributeOf(AttentionKernels kernels);

// One way to carry attention out: the kernels, and how much of scratch a group of cuDNN's backward pass may take.
struct AttentionWay {
  AttentionKernels kernels = AttentionKernels::kReference;
  std::int64_t grad_group_bytes = kGradGroupBytes;
};

// Ways between which timing may choose, with so much scratch as the plan has reserved: first the one of KernelsOf, for which it was
// reserved, then others that need no more, cuDNN's backward pass in smaller groups where it has to. Only the first where the
// attributes ask for kernels.
std::vector<AttentionWay> AttentionWays(const AttentionShape& shape, bool backward, bool deterministic,
                                        std::int64_t scratch_bytes);

// Of the times of ways, 0 where one was not timed: the index of the fastest, or 0 where that does not save at least kLeastGain
// of the first one's time. So a choice does not hang on chance where ways are alike.
inline constexpr double kLeastGain = 0.03;
std::size_t FastestWay(std::span<const double> milliseconds);

// Why an attention kernel (attention, attention_packed and their gradients) is slow: it is a reference
// kernel, or it has a window, within which cuDNN computes all pairs. kNone for every other kernel.
plan::SlowPath SlowAttention(std::string_view kernel, Types inputs, const graph::Attributes& attributes,
                             const CudaTarget& target);

// The part of the batch, of the heads and of the queries that one cuDNN execution works on, at most.
struct AttentionGroup {
  std::int64_t samples = 0;
  std::int64_t kv_heads = 0;
  std::int64_t queries = 0;
};
AttentionGroup ForwardGroup(const AttentionShape& shape);
// As large as grad_group_bytes allow. Queries are cut last, into multiples of 128 and at least that.
AttentionGroup BackwardGroup(const AttentionShape& shape, bool deterministic);

// Queries [first, first + count) as they lie, which stand at the positions [keys − count, keys): they see no
// key from `keys` on.
struct QueryChunk {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t keys = 0;
};
// The queries that stand at `positions`, in pieces that are contiguous in the sequence and of at most `most`
// (a multiple of 128, or all of them). Error: the positions are not those of all queries.
absl::StatusOr<std::vector<QueryChunk>> QueryChunks(const AttentionShape& shape, const DimExtent& positions,
                                                    std::int64_t most);

// Whether dk and dv are sums over several executions, or have keys that no query here sees.
bool SumsKeyGradients(const AttentionShape& shape, const AttentionGroup& group);

// Offsets in bytes, all multiples of 256; cuDNN's workspace stands at 0.
struct AttentionGradLayout {
  std::int64_t workspace_bytes = 0;  // what cuDNN may ask for
  std::int64_t row_sums = 0;         // Σ_U d_o·o of a group, fp32
  std::int64_t accumulator = 0;      // dq of a group, fp32; unused by the deterministic form
  // Where key gradients are sums, of a group: dk and dv of one execution, and their sums so far in fp32.
  std::int64_t dk_part = 0, dv_part = 0;
  std::int64_t dk_sum = 0, dv_sum = 0;
  std::int64_t bytes = 0;
};
AttentionGradLayout CudnnGradLayout(const AttentionShape& shape, bool deterministic);

// Of our own kernels, likewise; at 0 stand the rows' lse.
struct OwnGradLayout {
  std::int64_t row_sums = 0;
  std::int64_t dq_sums = 0;
  std::int64_t turns = 0, taken = 0;
  std::int64_t key_spans = 0, walks = 0, first_blocks = 0;  // where there are spans
  std::int64_t distance_sums = 0;                           // where there are biases by distance
  std::int64_t bytes = 0;
};
OwnGradLayout OwnGradLayoutOf(const AttentionShape& shape);

}  // namespace engine::backend::cuda

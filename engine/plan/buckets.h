// Parameter storage: buckets of parameters that are reduced and updated alike, and the update segment over
// them.
#pragma once

#include <vector>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::plan {

inline constexpr std::int32_t kNoLayer = -2;

// Buckets of the parameters with used[i], in order of first parameter. Parameters keep the plan's order
// inside a bucket, each starting at a multiple of 128 elements. Gradients partial over axes of size 1 need no
// reduction. The matrices of a layer have a bucket of their own, which is reduced early, where layers[i] is
// not kNoLayer. Layers from `blocks` on are no blocks.
std::vector<Bucket> MakeBuckets(const Plan& plan, const std::vector<bool>& used,
                                const std::vector<std::int32_t>& layers, std::int32_t blocks,
                                std::int64_t zero_stage, bool first_stage);

// Where buckets lie: how their buffers are kept.
struct BucketStorage {
  bool training = true;  // else parameters alone
  std::int64_t zero_stage = 0;
  bool matrix_masters = true;   // fp32 copies of matrices in 16 bits
  bool narrow_moments = false;  // in bf16
  int in_turns = 1;             // buffers that the blocks kept in shards take in turn
  // Parameters that are updated in shards are gathered when a program begins; those that its first blocks
  // read, behind the update.
  bool gather_at_begin = false;
};

// Places the buckets one after another from *cursor on, which it moves on, and adds their bytes to `memory`.
void PlaceBuckets(const BucketStorage& storage, std::int64_t* cursor, MemoryBreakdown* memory,
                  std::vector<Bucket>* buckets);

// How flat buffers are exchanged within the passes.
struct FlatExchange {
  bool behind = false;    // on a stream of its own
  AxisSet pushed = {};    // shards over these axes are pushed, where `behind`
  bool at_begin = false;  // parameters are gathered behind the first passes that read them, where `behind`
};

// Puts the reduction of each early bucket whose gradients this chunk makes behind the instruction that is the
// last to add to them, in the weights segment where that adds too. Where gradients are kept in shards, what a
// microbatch gives is then added to the shard: at once, or where exchange is behind computation before the
// next bucket is reduced. The scratch of what is pushed is not placed yet.
void ReduceEarly(const Plan& plan, const Chunk& chunk, const DeviceProfile& profile,
                 const FlatExchange& exchange, StagePlan* stage);

// Where parameters are kept in shards: gathers each bucket before the segment's first instruction that reads
// it, where exchange is behind computation one bucket ahead.
void GatherParameters(const Plan& plan, const StagePlan& stage, const FlatExchange& exchange,
                      Segment* segment);

// Where a bucket's item lies; `of` is the bucket's parameter or gradient buffer.
BufferRef ItemRef(const BufferRef& of, const Bucket::Item& item, std::int32_t value);

// Of the passes of a microbatch, in order: what is the first to read a bucket that is gathered when their
// program begins waits for that.
void JoinGathers(const Plan& plan, const StagePlan& stage, const std::vector<Segment*>& passes);

// The start of an iteration or of an evaluation: zero(scalars), and the gathers that run behind the first
// passes, in the order in which these read. Gradients need no zeroing: the first microbatch overwrites them.
Segment BeginSegment(std::string name, const Plan& plan, const StagePlan& stage,
                     const FlatExchange& exchange);

// Tied gradients summed over first and last stage; reduction of each bucket that is not early (all-reduce, or
// reduce-scatter under ZeRO-1), beside the norm of those that are where exchange is behind computation; norm
// over all stages; largest values of quantised tensors over the stage's ranks; clip factor; AdamW; all-gather
// of parameters that are updated in shards and neither kept so nor gathered at the beginning of the next
// program, behind AdamW of the next where exchange is behind computation; scales of quantised tensors.
// Scratch of its kernels lies at `transient_base`; *transient_bytes: how far it reaches.
Segment UpdateSegment(const Plan& plan, const StagePlan& stage, const recipe::Optimizer& optimizer,
                      bool dynamic_loss_scale, const FlatExchange& exchange, const DeviceProfile& profile,
                      std::int64_t transient_base, std::int64_t* transient_bytes);

// The sum of the scalars over the world.
Instruction ReduceScalars(const Plan& plan, const StagePlan& stage);

}  // namespace engine::plan

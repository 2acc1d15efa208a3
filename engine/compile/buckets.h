// Parameter storage: buckets of parameters that are reduced and updated alike.
#pragma once

#include <vector>

#include "engine/plan/plan.h"

namespace engine::compile {

inline constexpr std::int32_t kNoUnit = -1;

// Buckets of the parameters with used[i], in order of first parameter. All parameters of a bucket have the
// same training settings (graph::TrainingSettings). Frozen ones are whole on every rank that their placement
// gives them to, at every ZeRO stage: they have nothing that would be cut into shards but the weights, which
// are read in every pass. Parameters keep the plan's order inside a bucket, each starting at a multiple of
// 128 elements. Gradients partial over axes of size 1 need no reduction. The bulk parameters of a unit have
// a bucket of their own, which is reduced early, where units[i] is not kNoUnit. Of tied parameters the stage
// may have a copy that another one owns.
std::vector<plan::Bucket> MakeBuckets(const plan::Plan& plan, const std::vector<bool>& used,
                                      const std::vector<std::int32_t>& units, std::int64_t zero_stage,
                                      std::int32_t stage);

// Where buckets lie: how their buffers are kept.
struct BucketStorage {
  bool training = true;  // else parameters alone
  std::int64_t zero_stage = 0;
  bool bulk_masters = true;                       // fp32 copies of bulk parameters (graph/role.h) in 16 bits
  const plan::OptimizerDef* optimizer = nullptr;  // not read where there is no training
  DType moments = DType::kF32;                    // of the optimizer's states, of those that follow it
  int in_turns =
      1;  // sets of buffers, for all buckets of a block, that the blocks kept in shards take in turn
  // Parameters that are updated in shards are gathered when a program begins; those that its first blocks
  // read, behind the update.
  bool gather_at_begin = false;
};

// Places the buckets one after another from *cursor on, which it moves on, and adds their bytes to `memory`.
void PlaceBuckets(const BucketStorage& storage, std::int64_t* cursor, plan::MemoryBreakdown* memory,
                  std::vector<plan::Bucket>* buckets);

// Where a bucket's item lies; `of` is the bucket's parameter or gradient buffer.
plan::BufferRef ItemRef(const plan::BufferRef& of, const plan::Bucket::Item& item, std::int32_t value);

// This rank's shard of a bucket's whole flat buffer.
plan::BufferRef ShardOf(const plan::Bucket& bucket, plan::BufferRef buffer);

// Where this rank's parameters and gradients of a bucket outlive a microbatch.
plan::BufferRef OwnParameters(const plan::Bucket& bucket);
plan::BufferRef OwnGradients(const plan::Bucket& bucket);

}  // namespace engine::compile

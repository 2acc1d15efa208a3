// Part of VerifyShards: which buckets of a stage are kept in shards, and where their shards belong.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/verify/text.h"

namespace engine::verify {

// The same bytes of a rank, outside of slots.
inline bool SameFlatPlace(const plan::BufferRef& a, const plan::BufferRef& b) {
  return SamePlace(a, b) && !a.in_slot;
}

// Shows of the buckets of one stage, before any segment, that those that are kept in shards can be, over the
// ranks that share their gradients, and that a shard among those of all ranks is in its place.
class ShardedBuckets {
 public:
  // An error that names the first bucket for which this does not hold.
  static absl::StatusOr<ShardedBuckets> Of(const plan::Plan& plan, std::int32_t stage);

  const plan::Plan& plan() const { return plan_; }
  std::int32_t index() const { return index_; }  // of the stage
  const plan::StagePlan& stage() const { return plan_.stages[static_cast<std::size_t>(index_)]; }
  const plan::Bucket& At(std::size_t b) const { return stage().buckets[b]; }

  // The axes over which a bucket's gradients are partial: shards lie along them.
  plan::AxisSet AxesOf(const plan::Bucket& bucket) const;
  // This rank's part of a bucket's whole gradients or parameters.
  plan::BufferRef ShardOf(const plan::Bucket& bucket, plan::BufferRef whole) const;
  // Whether a bucket's parameters are gathered into a buffer of several buckets.
  static bool TakesTurns(const plan::Bucket& bucket) {
    return bucket.parameter_shard.elements > 0 && !bucket.gathered_at_begin();
  }

  // The bucket whose shard (Bucket::gradient_shard or parameter_shard) lies there.
  std::optional<std::size_t> ShardAt(const plan::BufferRef& ref, plan::BufferRef plan::Bucket::*shard) const;
  // The bucket kept in shards of a value of this kind: a parameter, or the gradient of one; else null.
  const std::size_t* Find(const plan::BufferRef& ref, graph::ValueKind kind) const;
  // The bucket, gathered when a program begins, whose parameter is this value, or whose parameters begin at
  // these bytes; else null.
  const std::size_t* AtBeginOf(const plan::BufferRef& parameter) const;
  const std::size_t* AtBeginIn(const plan::BufferRef& whole) const;

 private:
  ShardedBuckets(const plan::Plan& plan, std::int32_t stage) : plan_(plan), index_(stage) {}
  absl::Status Enter(std::size_t b);

  const plan::Plan& plan_;
  std::int32_t index_;
  absl::flat_hash_map<std::int32_t, std::size_t> bucket_of_;  // kept in shards, by parameter
  absl::flat_hash_map<std::int32_t, std::size_t> at_begin_;   // gathered when a program begins, by parameter
};

}  // namespace engine::verify

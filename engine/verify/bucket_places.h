// Where the parts of a bucket lie on a rank.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "engine/plan/plan.h"

namespace engine::verify {

// Whether the stage counts the bucket's gradients in the norm.
inline bool BelongsToNorm(const plan::Bucket& bucket) {
  return bucket.owned && !bucket.frozen() && !bucket.moves_by_sign();
}

// "stage 0 bucket.2"
inline std::string BucketName(std::int32_t stage, std::size_t bucket) {
  return fmt::format("stage {} bucket.{}", stage, bucket);
}

// The axes of `set` that are not in `remove`.
plan::AxisSet Minus(plan::AxisSet set, plan::AxisSet remove);

// This rank's part of a buffer that is cut into `shards` over `axes`.
plan::BufferRef Shard(plan::BufferRef buffer, std::int64_t shards, plan::AxisSet axes);

// The parameters that the optimizer moves, or makes of master weights, on this rank.
plan::BufferRef OwnParameters(const plan::Bucket& bucket);
// What the optimizer moves of a bucket on this rank: master weights, or the parameters themselves.
plan::BufferRef OwnWeights(const plan::Bucket& bucket);

// The stage's bucket whose gradients (or parameters) these bytes are, for longer than a microbatch; else the number
// of its buckets.
std::size_t BucketAt(const plan::StagePlan& stage, const plan::BufferRef& ref,
                     plan::BufferRef plan::Bucket::*buffer);

}  // namespace engine::verify

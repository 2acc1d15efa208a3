#include "engine/verify/bucket_places.h"

namespace engine::verify {

plan::AxisSet Minus(plan::AxisSet set, plan::AxisSet remove) {
  plan::AxisSet rest;
  for (graph::Axis axis : graph::kAxes) {
    if (set.Has(axis) && !remove.Has(axis)) rest = rest | plan::AxisSet::Of(axis);
  }
  return rest;
}

plan::BufferRef Shard(plan::BufferRef buffer, std::int64_t shards, plan::AxisSet axes) {
  if (shards == 1) return buffer;
  buffer.elements /= shards;
  buffer.shard_axes = axes;
  buffer.shard_stride = buffer.bytes();
  return buffer;
}

plan::BufferRef OwnParameters(const plan::Bucket& bucket) {
  return bucket.parameter_shard.elements > 0 ? bucket.parameter_shard
                                             : Shard(bucket.parameter, bucket.shards, bucket.reduce);
}

plan::BufferRef OwnWeights(const plan::Bucket& bucket) {
  return bucket.master.elements > 0 ? bucket.master : OwnParameters(bucket);
}

size_t BucketAt(const plan::StagePlan& stage, const plan::BufferRef& ref,
                plan::BufferRef plan::Bucket::*buffer) {
  for (size_t b = 0; b < stage.buckets.size(); ++b) {
    const plan::Bucket& bucket = stage.buckets[b];
    const plan::BufferRef& shard =
        buffer == &plan::Bucket::gradient ? bucket.gradient_shard : bucket.parameter_shard;
    const plan::BufferRef& whole = shard.elements > 0 ? shard : bucket.*buffer;
    if (!ref.in_slot && ref.offset >= whole.offset && ref.offset < whole.offset + whole.bytes()) return b;
  }
  return stage.buckets.size();
}

}  // namespace engine::verify

#include "engine/verify/sharded_buckets.h"

#include <algorithm>

namespace engine::verify {

absl::StatusOr<ShardedBuckets> ShardedBuckets::Of(const plan::Plan& plan, std::int32_t stage) {
  ShardedBuckets buckets(plan, stage);
  for (size_t b = 0; b < buckets.stage().buckets.size(); ++b) RETURN_IF_ERROR(buckets.Enter(b));
  return buckets;
}

absl::Status ShardedBuckets::Enter(size_t b) {
  const plan::Bucket& bucket = At(b);
  const bool gradients = bucket.gradient_shard.elements > 0;
  const bool parameters = TakesTurns(bucket);
  if (bucket.gathered_at_begin()) {
    if (bucket.tied() || !SameFlatPlace(bucket.parameter_shard, ShardOf(bucket, bucket.parameter)))
      return Internal("stage {} bucket.{}: its shard is not in its place", index_, b);
    for (const plan::Bucket::Item& item : bucket.items) at_begin_[item.parameter] = b;
  }
  if (!gradients && !parameters) return absl::OkStatus();
  if (!gradients || bucket.tied() || bucket.shards != plan_.mesh.GroupSize(AxesOf(bucket))) {
    return Internal("stage {} bucket.{} cannot be kept in {} shards", index_, b, bucket.shards);
  }
  for (const plan::Bucket::Item& item : bucket.items) bucket_of_[item.parameter] = b;
  return absl::OkStatus();
}

plan::AxisSet ShardedBuckets::AxesOf(const plan::Bucket& bucket) const {
  const plan::PlanParameter& parameter =
      plan_.parameters[static_cast<size_t>(bucket.items.front().parameter)];
  return plan_.mesh.Active(plan_.values[static_cast<size_t>(parameter.gradient)].layout.PartialAxes());
}

plan::BufferRef ShardedBuckets::ShardOf(const plan::Bucket& bucket, plan::BufferRef whole) const {
  whole.elements /= plan_.mesh.GroupSize(AxesOf(bucket));
  whole.shard_axes = AxesOf(bucket);
  whole.shard_stride = whole.bytes();
  return whole;
}

std::optional<size_t> ShardedBuckets::ShardAt(const plan::BufferRef& ref,
                                              plan::BufferRef plan::Bucket::*shard) const {
  for (size_t b = 0; b < stage().buckets.size(); ++b) {
    if ((At(b).*shard).elements > 0 && SameFlatPlace(ref, At(b).*shard)) return b;
  }
  return std::nullopt;
}

const size_t* ShardedBuckets::Find(const plan::BufferRef& ref, graph::ValueKind kind) const {
  if (ref.value < 0 || ValueOf(plan_, ref).kind != kind) return nullptr;
  const auto it = bucket_of_.find(ValueOf(plan_, ref).parameter);
  return it == bucket_of_.end() ? nullptr : &it->second;
}

const size_t* ShardedBuckets::AtBeginOf(const plan::BufferRef& parameter) const {
  if (parameter.value < 0 || ValueOf(plan_, parameter).kind != graph::ValueKind::kParameter) return nullptr;
  const auto it = at_begin_.find(ValueOf(plan_, parameter).parameter);
  return it == at_begin_.end() ? nullptr : &it->second;
}

const size_t* ShardedBuckets::AtBeginIn(const plan::BufferRef& whole) const {
  const auto it = std::find_if(at_begin_.begin(), at_begin_.end(), [&](const auto& parameter) {
    return whole.offset == At(parameter.second).parameter.offset;
  });
  return it == at_begin_.end() ? nullptr : &it->second;
}

}  // namespace engine::verify

#include "engine/verify/bucket_sums.h"

#include <algorithm>

#include "engine/verify/bucket_places.h"
#include "engine/verify/text.h"

namespace engine::verify {

absl::Status BucketSums::Enter() {
  for (size_t b = 0; b < stage_.buckets.size(); ++b) RETURN_IF_ERROR(EnterBucket(b));
  return absl::OkStatus();
}

// The active axes that do not split the parameter, nor its gradient.
absl::StatusOr<plan::AxisSet> BucketSums::NotSplit(const plan::PlanParameter& parameter, size_t b) const {
  const plan::Layout& gradient = plan_.values[static_cast<size_t>(parameter.gradient)].layout;
  const plan::Layout& layout = plan_.values[static_cast<size_t>(parameter.value)].layout;
  plan::AxisSet not_split;
  for (graph::Axis axis : graph::kAxes) {
    const bool split = layout.At(axis).split();
    if (!split) not_split = not_split | plan::AxisSet::Of(axis);
    if (split != gradient.At(axis).split() || (split && layout.At(axis) != gradient.At(axis))) {
      return Internal("{}: {} is split as {}, its gradient as {}", BucketName(index_, b), parameter.name,
                      layout.ToString(), gradient.ToString());
    }
  }
  return plan_.mesh.Active(not_split);
}

absl::Status BucketSums::EnterBucket(size_t b) {
  const plan::Bucket& bucket = stage_.buckets[b];
  if (bucket.frozen()) {  // there is nothing to sum
    sums_.emplace_back();
    return absl::OkStatus();
  }
  plan::AxisSet copies;  // axes that do not split the parameters
  plan::AxisSet partial;
  for (size_t i = 0; i < bucket.items.size(); ++i) {
    const plan::PlanParameter& parameter = plan_.parameters[static_cast<size_t>(bucket.items[i].parameter)];
    if (parameter.gradient < 0)
      return Internal("{}: {} has no gradient", BucketName(index_, b), parameter.name);
    const plan::Layout& gradient = plan_.values[static_cast<size_t>(parameter.gradient)].layout;
    ASSIGN_OR_RETURN(const plan::AxisSet not_split, NotSplit(parameter, b));
    const plan::AxisSet own = plan_.mesh.Active(gradient.PartialAxes());
    if (i > 0 && !(own == partial && not_split == copies)) {
      return Internal("{}: {} is partial over {} and repeated over {}, the items before it over {} and {}",
                      BucketName(index_, b), parameter.name, own.ToString(), not_split.ToString(),
                      partial.ToString(), copies.ToString());
    }
    partial = own;
    copies = not_split;
  }
  sums_.push_back({.partial = partial, .copies = copies, .tie = bucket.tied()});
  if (bucket.gradient_shard.elements > 0) {  // reduced in each microbatch: VerifyShards
    sums_.back().partial = {};
    sums_.back().scattered = true;
  }
  return absl::OkStatus();
}

absl::Status BucketSums::Reduce(const plan::Instruction& instruction) {
  const plan::BufferRef& ref = instruction.inputs[0];
  const size_t b = BucketAt(stage_, ref, &plan::Bucket::gradient);
  if (b == stage_.buckets.size() || !SamePlace(ref, stage_.buckets[b].gradient)) {
    return Internal("{} of bytes that are no bucket's gradients", instruction.kernel());
  }
  Sum& sum = sums_[b];
  if (sum.scattered) return Internal("the gradients of bucket.{} are already scattered", b);
  if (instruction.group().IsTie()) return SumTied(instruction, b);
  const plan::AxisSet extra = Minus(instruction.group().axes, sum.partial);
  if (!extra.empty() || instruction.group().axes.HasPp()) {
    return Internal("sums the gradients of bucket.{} over {}, but they are partial over {} only", b,
                    plan_.mesh.NameOf(instruction.group()), sum.partial.ToString());
  }
  sum.partial = Minus(sum.partial, instruction.group().axes);
  if (instruction.detached()) sum.under_way = true;
  if (instruction.collective() == plan::Collective::kAllReduce) return absl::OkStatus();
  if (instruction.collective() != plan::Collective::kReduceScatter) {
    return Internal("{} does not sum gradients", instruction.kernel());
  }
  sum.scattered = true;
  const std::int64_t shards = plan_.mesh.GroupSize(instruction.group());
  if (stage_.buckets[b].shards == shards) return absl::OkStatus();
  return Internal("scatters bucket.{} into {} shards, its optimizer state has {}", b, shards,
                  stage_.buckets[b].shards);
}

// A tie is summed over the stages that hold a copy.
absl::Status BucketSums::SumTied(const plan::Instruction& instruction, size_t b) {
  Sum& sum = sums_[b];
  if (!sum.tie)
    return Internal("the gradients of bucket.{} are not (or no longer) to be summed over the tie", b);
  if (instruction.collective() != plan::Collective::kAllReduce) return Internal("a tie is an all_reduce");
  const plan::Group holders = plan::Group::OfHolders(stage_.buckets[b].holders);
  if (!(instruction.group() == holders)) {
    return Internal("sums the gradients of bucket.{} over the {}, but its copies are the {}'s", b,
                    plan_.mesh.NameOf(instruction.group()), plan_.mesh.NameOf(holders));
  }
  sum.tie = false;
  return absl::OkStatus();
}

void BucketSums::ReducedBehindPass(size_t bucket) {
  sums_[bucket].early = true;
  sums_[bucket].under_way = false;
}

absl::Status BucketSums::Join(const plan::Instruction& instruction) {
  if (instruction.waits_for_bucket < 0) return absl::OkStatus();
  const auto b = static_cast<size_t>(instruction.waits_for_bucket);
  if (b >= sums_.size() || !sums_[b].under_way || instruction.AsKernel() == nullptr)
    return Internal("waits for bucket.{}, of which nothing is under way", b);
  sums_[b].under_way = false;
  return absl::OkStatus();
}

bool BucketSums::AnyUnderWay() const {
  return std::any_of(sums_.begin(), sums_.end(), [](const Sum& sum) { return sum.under_way; });
}

absl::Status BucketSums::ReadsSum(const plan::BufferRef& ref, size_t b) const {
  const Sum& sum = sums_[b];
  if (!sum.partial.empty()) {
    return Internal("reads the gradients of bucket.{}, which are still partial over {}", b,
                    sum.partial.ToString());
  }
  if (sum.tie) return Internal("reads the gradients of bucket.{} before they are summed over the tie", b);
  if (sum.under_way)
    return Internal("reads the gradients of bucket.{} and does not wait for their reduction", b);
  const plan::Bucket& bucket = stage_.buckets[b];
  const plan::BufferRef own = bucket.gradient_shard.elements > 0
                                  ? bucket.gradient_shard
                                  : Shard(bucket.gradient, sum.scattered ? bucket.shards : 1, bucket.reduce);
  if (SamePlace(ref, own)) return absl::OkStatus();
  return Internal("reads {} gradients of bucket.{} at {}, not {}", ref.elements, b, ref.offset,
                  sum.scattered ? "its shard" : "all of them");
}

plan::AxisSet BucketSums::RepeatedOver(size_t bucket) const {
  return Minus(sums_[bucket].copies,
               sums_[bucket].scattered ? stage_.buckets[bucket].reduce : plan::AxisSet());
}

}  // namespace engine::verify

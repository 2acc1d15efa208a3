#include "engine/verify/norm_sum.h"

#include "engine/verify/bucket_places.h"
#include "engine/verify/text.h"

namespace engine::verify {

absl::Status NormSum::Count(const plan::Instruction& instruction) {
  if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1) return Internal("takes one buffer");
  const size_t b = BucketAt(stage_, instruction.inputs[0], &plan::Bucket::gradient);
  if (b == stage_.buckets.size()) return Internal("reads bytes that are no bucket's gradients");
  RETURN_IF_ERROR(sums_.ReadsSum(instruction.inputs[0], b));
  if (!stage_.buckets[b].owned) return Internal("bucket.{} is counted by the stage that owns it", b);
  if (counted_[b]++ > 0) return Internal("bucket.{} is counted twice in the norm", b);
  const plan::AxisSet repeated = sums_.RepeatedOver(b);
  if (!(instruction.only_first() == repeated)) {
    return Internal("bucket.{} is repeated over {}, but counted on the first of {}", b, repeated.ToString(),
                    instruction.only_first().ToString());
  }
  plan::BufferRef norm = stage_.scalars;
  norm.offset += SizeOf(DType::kF64);
  norm.elements = 1;
  if (!SamePlace(instruction.outputs[0], norm) || instruction.accumulate() != 1) {
    return Internal("does not add to the norm");
  }
  return absl::OkStatus();
}

absl::Status NormSum::Reduce(const plan::Instruction& instruction) {
  if (instruction.collective() != plan::Collective::kAllReduce ||
      !(instruction.group() == plan::AxisSet::World())) {
    return Internal("loss and norm are summed over the world, not by {} over {}", instruction.kernel(),
                    plan_.mesh.NameOf(instruction.group()));
  }
  if (summed_++ > 0) return Internal("loss and norm are summed twice");
  for (size_t b = 0; b < stage_.buckets.size(); ++b) {
    if (BelongsToNorm(stage_.buckets[b]) && counted_[b] == 0) {
      return Internal("the norm is summed before that of bucket.{} is in it", b);
    }
  }
  return absl::OkStatus();
}

absl::Status NormSum::Clip(const plan::Instruction& instruction) {
  if (instruction.inputs.size() != 1 || !SamePlace(instruction.inputs[0], stage_.scalars) ||
      instruction.outputs.size() != 1 || !SamePlace(instruction.outputs[0], stage_.control)) {
    return Internal("is not from the scalars to the control block");
  }
  if (clipped_) return Internal("the clip factor is computed twice");
  for (size_t b = 0; b < stage_.buckets.size(); ++b) {
    if (BelongsToNorm(stage_.buckets[b]) && counted_[b] == 0) {
      return Internal("the norm is read before that of bucket.{} is in it", b);
    }
  }
  if (plan_.mesh.world() > 1 && summed_ == 0) return Internal("the norm is read before it is summed");
  clipped_ = true;
  return absl::OkStatus();
}

}  // namespace engine::verify

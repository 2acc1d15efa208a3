#include "engine/verify/buffers_in_turn.h"

namespace engine::verify {

using Phase = BufferInTurn::Phase;

const BufferInTurn* BuffersInTurn::Find(size_t b) const {
  const auto it = buffers_.find((buckets_.At(b).*whole_).offset);
  return it == buffers_.end() ? nullptr : &it->second;
}

const BufferInTurn* BuffersInTurn::FindOther(Phase phase) const {
  for (const auto& [offset, buffer] : buffers_) {
    if (buffer.phase != phase) return &buffer;
  }
  return nullptr;
}

absl::Status BuffersInTurn::Exchange(const plan::Instruction& instruction, Phase wanted,
                                     const char* missing) {
  const plan::BufferRef& ref = instruction.inputs[0];
  const auto it = buffers_.find(ref.offset);
  if (it == buffers_.end() || it->second.phase != wanted)
    return Internal("finds {} at {}", missing, ref.offset);
  BufferInTurn& buffer = it->second;
  const plan::Bucket& bucket = buckets_.At(buffer.bucket);
  if (!SameFlatPlace(ref, bucket.*whole_) || !SameFlatPlace(ref, instruction.outputs[0])) {
    return Internal("is not of all of bucket.{}, in place", buffer.bucket);
  }
  const plan::AxisSet axes = buckets_.AxesOf(bucket);
  if (!(instruction.group() == axes) || instruction.reduction() != graph::Reduction::kSum) {
    return Internal("the shards of bucket.{} lie over {}, not over {}", buffer.bucket, axes.ToString(),
                    buckets_.plan().mesh.NameOf(instruction.group()));
  }
  if (instruction.last_only() || (instruction.push() && !instruction.detached()))
    return Internal("is not exchanged in every microbatch, behind computation or in its place");
  buffer.phase = instruction.detached() ? Phase::kExchanging : Phase::kWhole;
  return absl::OkStatus();
}

bool BuffersInTurn::Join(size_t b) {
  bool under_way = false;
  for (auto& [offset, buffer] : buffers_) {
    if (buffer.phase != Phase::kExchanging || buffer.bucket != b) continue;
    buffer.phase = Phase::kWhole;
    under_way = true;
  }
  return under_way;
}

void GradientsInTurn::StartSegment() {
  buffers_.Clear();
  summed_.clear();
}

absl::Status GradientsInTurn::Sum(const plan::Instruction& instruction, size_t k, size_t b) {
  const plan::BufferRef& output = instruction.outputs[k];
  BufferInTurn& buffer = buffers_.Of(b);
  if (buffer.phase == Phase::kFree) buffer = {.phase = Phase::kSumming, .bucket = b};
  if (buffer.bucket != b) {
    return Internal("sums gradients of bucket.{} where those of bucket.{} are not yet added to their shard",
                    b, buffer.bucket);
  }
  if (buffer.phase != Phase::kSumming)
    return Internal("adds to the gradients of bucket.{}, which are already reduced", b);
  const bool first = summed_.insert(ValueOf(buckets_.plan(), output).parameter).second;
  const bool adds = ((instruction.accumulate() >> k) & 1U) != 0;
  const bool fresh = ((instruction.fresh() >> k) & 1U) != 0;
  if (adds != first && !fresh) return absl::OkStatus();
  return Internal("{} {}", first ? "adds to what was in the buffer of" : "overwrites the sum",
                  NameOf(buckets_.plan(), output.value));
}

absl::Status GradientsInTurn::Add(const plan::Instruction& instruction) {
  const auto b = buckets_.ShardAt(instruction.outputs[0], &plan::Bucket::gradient_shard);
  if (!b.has_value()) return Internal("adds to no shard of gradients");
  const plan::Bucket& bucket = buckets_.At(*b);
  BufferInTurn& buffer = buffers_.Of(*b);
  if (!SameFlatPlace(instruction.inputs[0], buckets_.ShardOf(bucket, bucket.gradient)) ||
      buffer.bucket != *b || buffer.phase != Phase::kWhole) {
    return Internal("adds to the shard of bucket.{} what is not its gradients' sum{}", *b,
                    buffer.phase == Phase::kExchanging ? " yet" : "");
  }
  buffer = {};
  return absl::OkStatus();
}

absl::Status GradientsInTurn::EndSegment(const plan::Segment& segment) const {
  const BufferInTurn* left = buffers_.FindOther(Phase::kFree);
  if (left == nullptr) return absl::OkStatus();
  return Internal("stage {} {}: the gradients of bucket.{} are not added to their shard", buckets_.index(),
                  segment.name, left->bucket);
}

absl::Status ParametersInTurn::Copy(const plan::Instruction& instruction) {
  const auto b = buckets_.ShardAt(instruction.inputs[0], &plan::Bucket::parameter_shard);
  if (!b.has_value()) return Internal("copies no shard of parameters");
  const plan::Bucket& bucket = buckets_.At(*b);
  if (!SameFlatPlace(instruction.outputs[0], buckets_.ShardOf(bucket, bucket.parameter)))
    return Internal("puts the shard of bucket.{} where it does not belong", *b);
  BufferInTurn& buffer = buffers_.Of(*b);
  if (buffer.phase == Phase::kExchanging || buffer.phase == Phase::kCopied)
    return Internal("overwrites bucket.{} before it is gathered", buffer.bucket);
  buffer = {.phase = Phase::kCopied, .bucket = *b};
  return absl::OkStatus();
}

absl::Status ParametersInTurn::Read(const plan::BufferRef& input) const {
  const size_t* b = buckets_.Find(input, graph::ValueKind::kParameter);
  if (b == nullptr || !ShardedBuckets::TakesTurns(buckets_.At(*b))) return absl::OkStatus();
  const BufferInTurn* buffer = buffers_.Find(*b);
  if (buffer == nullptr || buffer->bucket != *b) {
    return Internal("reads {}, but its buffer holds {}", NameOf(buckets_.plan(), input.value),
                    buffer == nullptr ? "nothing" : fmt::format("bucket.{}", buffer->bucket));
  }
  if (buffer->phase == Phase::kWhole) return absl::OkStatus();
  return Internal("reads {}, which is not {}", NameOf(buckets_.plan(), input.value),
                  buffer->phase == Phase::kCopied ? "gathered" : "waited for");
}

absl::Status ParametersInTurn::EndSegment(const plan::Segment& segment) const {
  const BufferInTurn* left = buffers_.FindOther(Phase::kWhole);
  if (left == nullptr) return absl::OkStatus();
  return Internal("stage {} {}: bucket.{} is gathered for nothing", buckets_.index(), segment.name,
                  left->bucket);
}

}  // namespace engine::verify

#include "engine/verify/gathers_at_begin.h"

namespace engine::verify {

void GathersAtBegin::StartSegment(const plan::Segment& segment) {
  segment_ = &segment;
  joined_.clear();
}

void GathersAtBegin::EndSegment() {
  for (const plan::Chunk& chunk : buckets_.stage().chunks) {
    if (Runs(chunk.train().forward)) joined_forward_[chunk.index] = joined_;
  }
}

bool GathersAtBegin::Runs(std::int32_t segment) const {
  return segment >= 0 && segment_ == &buckets_.stage().segments[static_cast<size_t>(segment)];
}

bool GathersAtBegin::Begins() const {
  for (plan::FormId form = 0; form < buckets_.plan().FormsEnd(); ++form) {
    if (Runs(buckets_.stage().ends[form].first)) return true;
  }
  return false;
}

absl::Status GathersAtBegin::Gather(const plan::Instruction& instruction, size_t b) {
  const plan::Bucket& bucket = buckets_.At(b);
  if (!Begins()) return Internal("gathers bucket.{} when its program has begun", b);
  const plan::AxisSet axes = buckets_.AxesOf(bucket);
  if (instruction.collective() != plan::Collective::kAllGather ||
      !SameFlatPlace(instruction.inputs[0], bucket.parameter) ||
      !SameFlatPlace(instruction.outputs[0], bucket.parameter) || !(instruction.group() == axes)) {
    return Internal("is not the gather of all of bucket.{}, in place, over {}", b, axes.ToString());
  }
  if (!instruction.detached() || instruction.last_only())
    return Internal("does not gather bucket.{} behind the passes", b);
  if (!begun_.insert(b).second) return Internal("gathers bucket.{} again", b);
  return absl::OkStatus();
}

bool GathersAtBegin::Join(size_t b) {
  if (!begun_.contains(b)) return false;
  joined_.insert(b);
  return true;
}

// Since the program began; a chunk's forward pass is before its others.
bool GathersAtBegin::IsJoined(size_t b) const {
  if (joined_.contains(b)) return true;
  for (const plan::Chunk& chunk : buckets_.stage().chunks) {
    if (!Runs(chunk.train().backward) && !Runs(chunk.train().weights)) continue;
    const auto forward = joined_forward_.find(chunk.index);
    return forward != joined_forward_.end() && forward->second.contains(b);
  }
  return false;
}

absl::Status GathersAtBegin::Read(const plan::BufferRef& input) const {
  const size_t* b = buckets_.AtBeginOf(input);
  if (b == nullptr || IsJoined(*b)) return absl::OkStatus();
  return Internal("reads {}, which is not waited for", NameOf(buckets_.plan(), input.value));
}

}  // namespace engine::verify

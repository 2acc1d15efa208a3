#include "engine/verify/update_streams.h"

#include "engine/verify/bucket_places.h"
#include "engine/verify/text.h"

namespace engine::verify {

absl::Status UpdateStreams::Check(const plan::Instruction& instruction, bool reducing) {
  RETURN_IF_ERROR(OnItsStream(instruction, reducing));
  return Scribbles(instruction);
}

// Gradients are reduced beside the norm of others, and the parameters that nothing in the update reads
// again are gathered behind it. Beside that no other collective runs.
absl::Status UpdateStreams::OnItsStream(const plan::Instruction& instruction, bool reducing) {
  const bool exchanges = instruction.collective() != plan::Collective::kNone;
  const bool gathers =
      instruction.IsBucketExchange() && instruction.collective() == plan::Collective::kAllGather;
  const bool reduces =
      instruction.IsBucketExchange() && exchanges && !gathers && !instruction.group().IsTie() &&
      BucketAt(stage_, instruction.inputs[0], &plan::Bucket::gradient) < stage_.buckets.size();
  const bool behind = instruction.detached() && (gathers || reduces);
  const bool before = instruction.stream == plan::kComputeStream && !instruction.push();
  if (instruction.last_only() || !(before || behind)) {
    return Internal("runs on stream {}, and {} waits for it", instruction.stream,
                    instruction.detached() ? "nothing" : "the next");
  }
  if (before && exchanges && (gathering_ || reducing)) {
    return Internal("runs beside what is {} behind the update", gathering_ ? "gathered" : "reduced");
  }
  gathering_ = gathering_ || (behind && gathers);
  return absl::OkStatus();
}

// What arrives beside kernels and other exchange has a place of its own.
absl::Status UpdateStreams::Scribbles(const plan::Instruction& instruction) {
  const plan::BufferRef& scratch = instruction.scratch;
  if (scratch.elements == 0) return absl::OkStatus();
  for (const auto& [other, arrives] : scratches_) {
    if ((arrives || instruction.push()) && scratch.Overlaps(*other))
      return Internal("its scratch at {} is also where pushed gradients arrive", scratch.offset);
  }
  scratches_.emplace_back(&scratch, instruction.push());
  return absl::OkStatus();
}

absl::Status ArrivesBehindPasses(const plan::StagePlan& stage, const plan::Instruction& instruction) {
  const plan::BufferRef& scratch = instruction.scratch;
  if (scratch.elements == 0 && !instruction.push()) return absl::OkStatus();
  const std::int64_t begin = stage.transient_base + stage.pass_bytes;
  const std::int64_t end = stage.transient_base + stage.memory.transients;
  if (instruction.push() && scratch.elements > 0 && !scratch.in_slot && scratch.offset >= begin &&
      scratch.offset + scratch.bytes() <= end) {
    return absl::OkStatus();
  }
  return Internal("arrives at [{}, {}), not behind the transients of passes, in [{}, {})", scratch.offset,
                  scratch.offset + scratch.bytes(), begin, end);
}

}  // namespace engine::verify

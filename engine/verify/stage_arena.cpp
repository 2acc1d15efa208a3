#include "engine/verify/stage_arena.h"

#include "engine/verify/text.h"

namespace engine::verify {

absl::StatusOr<StageArena> StageArena::Of(const plan::Plan& plan, std::int32_t stage, plan::FormId form) {
  StageArena arena(plan, stage, form);
  const std::int32_t largest = plan.ProgramOf(form);
  ASSIGN_OR_RETURN(arena.regions_, Regions::Of(plan, {stage, largest}));
  ASSIGN_OR_RETURN(arena.buffers_, PipelineBuffersOf(plan, {stage, largest}));
  for (std::int32_t p = 0; p < largest; ++p) {
    if (plan.ProgramAt(p).form != form) continue;
    ASSIGN_OR_RETURN(const PipelineBuffers buffers, PipelineBuffersOf(plan, {stage, p}));
    RETURN_IF_ERROR(arena.SameBuffers(p, buffers.send, arena.buffers_.send));
    RETURN_IF_ERROR(arena.SameBuffers(p, buffers.receive, arena.buffers_.receive));
  }
  return arena;
}

absl::Status StageArena::SameBuffers(std::int32_t program, const PipelineBuffers::ByHalf& buffers,
                                     const PipelineBuffers::ByHalf& of_largest) const {
  for (const auto& [key, buffer] : of_largest) {
    const auto it = buffers.find(key);
    if (it != buffers.end() && SamePlace(it->second, buffer)) continue;
    return Internal("stage {} {}: {} does not go through the buffer at {}, where its segments have it",
                    index_, plan_->ProgramName(program),
                    NameOf(*plan_, plan_->transfers[static_cast<size_t>(key.first)].value), buffer.offset);
  }
  return absl::OkStatus();
}

absl::Status StageArena::TransientsFit() const {
  const std::int64_t begin = stage_->transient_base;
  const std::int64_t end = begin + stage_->pass_bytes;
  if (begin < 0 || stage_->pass_bytes < 0 || end > stage_->arena_bytes) {
    return Internal("stage {}: transients at [{}, {}) are outside of the arena of {} bytes", index_, begin,
                    end, stage_->arena_bytes);
  }
  const Region* region = regions_.Overlapping(begin, end);
  if (region == nullptr) return absl::OkStatus();
  return Internal("stage {}: transients at [{}, {}) overlap {} at [{}, {})", index_, begin, end, region->name,
                  region->begin, region->end);
}

absl::Status StageArena::InsidePass(const plan::BufferRef& ref) const {
  if (ref.in_slot || IsPipelineBuffer(ref)) return absl::OkStatus();
  const std::int64_t begin = stage_->transient_base;
  const std::int64_t end = begin + stage_->pass_bytes;
  if (ref.offset >= begin && Reach(*plan_, ref) <= end) return absl::OkStatus();
  return Internal("{} at [{}, {}) reaches out of the transients, [{}, {})", NameOrScratch(*plan_, ref),
                  ref.offset, Reach(*plan_, ref), begin, end);
}

// Outside of slots.
bool StageArena::IsPipelineBuffer(const plan::BufferRef& ref) const {
  for (const auto* buffers : {&buffers_.send, &buffers_.receive}) {
    for (const auto& [t, buffer] : *buffers) {
      if (ref.value == buffer.value && !buffer.in_slot && SamePlace(ref, buffer)) return true;
    }
  }
  return false;
}

absl::Status StageArena::IsTransient(const plan::BufferRef& ref, const std::string& what) const {
  if (ref.offset < 0 || ref.in_slot || End(ref) > stage_->arena_bytes) {
    return Internal("writes {} at [{}, {}), outside of the arena of {} bytes", what, ref.offset, End(ref),
                    stage_->arena_bytes);
  }
  const Region* region = regions_.Overlapping(ref.offset, End(ref));
  if (region == nullptr) return absl::OkStatus();
  return Internal("writes {} at [{}, {}), which overlaps {} at [{}, {})", what, ref.offset, End(ref),
                  region->name, region->begin, region->end);
}

}  // namespace engine::verify

// What the programs of one form hold in a stage's arena, and which bytes are left for transients.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/verify/regions.h"

namespace engine::verify {

// Shows that bytes which live no longer than a segment overlap nothing that a stage's programs of one form hold
// from step to step. These programs run the same segments, so what they hold has to be the same in all of them.
class StageArena {
 public:
  // An error if programs of the form send or receive a value at different places, or if regions overlap.
  static absl::StatusOr<StageArena> Of(const plan::Plan& plan, std::int32_t stage, plan::FormId form);

  // Those of a microbatch's passes lie in the arena, beside what outlives a segment.
  absl::Status TransientsFit() const;

  // What a training microbatch makes lies in slots, buffers of the pipeline, or where its transients are: behind
  // these is where pushed gradients arrive.
  absl::Status InsidePass(const plan::BufferRef& ref) const;

  // An error if `ref`, which messages call `what`, lies outside of the arena or on what outlives a segment.
  absl::Status IsTransient(const plan::BufferRef& ref, const std::string& what) const;

  plan::FormId form() const { return form_; }
  const PipelineBuffers& buffers() const { return buffers_; }

 private:
  StageArena(const plan::Plan& plan, std::int32_t stage, plan::FormId form)
      : plan_(&plan), index_(stage), stage_(&plan.stages[static_cast<std::size_t>(stage)]), form_(form) {}

  absl::Status SameBuffers(std::int32_t program, const PipelineBuffers::ByHalf& buffers,
                           const PipelineBuffers::ByHalf& of_largest) const;
  bool IsPipelineBuffer(const plan::BufferRef& ref) const;

  const plan::Plan* plan_;
  std::int32_t index_;
  const plan::StagePlan* stage_;
  plan::FormId form_;
  Regions regions_;
  PipelineBuffers buffers_;
};

}  // namespace engine::verify

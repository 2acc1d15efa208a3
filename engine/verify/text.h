// How the verifier names what it found, and small queries that its checks share.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

// A stage's program.
struct ProgramId {
  std::int32_t stage = 0;
  std::int32_t program = 0;  // Plan::programs
};

// "stage 1 backward.1 #17 layers.3.mlp.fc1"
std::string InstructionName(std::int32_t stage, const plan::Segment& segment, std::size_t instruction);

// "stage 0 train step 12 (send layers.3.mlp.residual, microbatch 3)"
std::string StepName(const plan::Plan& plan, ProgramId id, std::size_t step);
// The same without the stage: "train step 12 (send layers.3.mlp.residual, microbatch 3)"
std::string StepText(const plan::Plan& plan, ProgramId id, std::size_t step);

// Whether all indices of a program's steps point at something, waits at earlier steps, and runs are of the
// computation's stream and sends and receives of theirs. What the other checks of programs rely on.
absl::Status ProgramWellFormed(const plan::Plan& plan, ProgramId id);

inline const plan::Program& ProgramOf(const plan::Plan& plan, ProgramId id) {
  return plan.stages[static_cast<std::size_t>(id.stage)].programs[static_cast<std::size_t>(id.program)];
}

inline const plan::LocalValue& ValueOf(const plan::Plan& plan, const plan::BufferRef& ref) {
  return plan.values[static_cast<std::size_t>(ref.value)];
}
inline const std::string& NameOf(const plan::Plan& plan, std::int32_t value) {
  return plan.values[static_cast<std::size_t>(value)].name;
}
// As messages call what an instruction takes: a value, or the bytes that it scribbles on.
inline std::string NameOrScratch(const plan::Plan& plan, const plan::BufferRef& ref) {
  return ref.value < 0 ? "its scratch" : NameOf(plan, ref.value);
}

// The same bytes of a rank.
inline bool SamePlace(const plan::BufferRef& a, const plan::BufferRef& b) {
  return a.offset == b.offset && a.elements == b.elements && a.dtype == b.dtype && a.in_slot == b.in_slot &&
         a.shard_axes == b.shard_axes && (a.shard_axes.empty() || a.shard_stride == b.shard_stride);
}

inline std::int64_t End(const plan::BufferRef& ref) { return ref.offset + ref.bytes(); }
// Of the shards of all ranks.
inline std::int64_t Reach(const plan::Plan& plan, const plan::BufferRef& ref) {
  const std::int64_t others = ref.shard_axes.empty() ? 0 : plan.mesh.GroupSize(ref.shard_axes) - 1;
  return End(ref) + others * ref.shard_stride;
}
// On any of the ranks.
inline bool Overlap(const plan::Plan& plan, const plan::BufferRef& a, const plan::BufferRef& b) {
  return a.in_slot == b.in_slot && a.offset < Reach(plan, b) && b.offset < Reach(plan, a);
}

inline bool IsBackward(const plan::Transfer& transfer) { return transfer.to_chunk < transfer.from_chunk; }

// Whether these bytes begin a buffer that buckets take in turn, for whole gradients or parameters of which
// this rank keeps a shard.
bool IsInTurns(const plan::StagePlan& stage, const plan::BufferRef& ref);

// A bucket's state of that number as its optimizer calls it: "first moments"; "state 2" of more than it has.
std::string StateTitle(const plan::Plan& plan, std::size_t state);

inline bool Trains(const plan::StagePlan& stage) { return stage.update() >= 0; }

}  // namespace engine::verify

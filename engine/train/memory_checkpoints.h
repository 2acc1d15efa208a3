// Checkpoints of a run in its hosts' memory (executor/memory_checkpoint.h): ranks that a supervisor starts again after a failure go on from
// there, where every rank still has a copy of the same iteration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/train/other_layouts.h"
#include "engine/train/position.h"
#include "engine/train/run_context.h"

namespace engine::train {

// A state in the hosts' memory that the run goes on from.
struct KeptState {
  Position position;
  // Null: each rank's file has its own state. Else ranks of another layout have made the copies.
  std::unique_ptr<OtherLayout> other_layout = {};
};

// The newest state of which every rank of the run has a copy, at least as far as `least` iterations; else one of which every rank of another
// layout has a copy; the same in all processes. nullopt: there is none, or the recipe asks for no such checkpoints. What a rank has of another
// recipe or other data does not count. What another host has alone of this layout is brought here.
// Also decides whether copies are made in this run, and who has them.
absl::StatusOr<std::optional<KeptState>> AgreeOnKept(RunContext& run, std::int64_t least);

// Takes the memory for the copies, of which that of iteration `kept` stays (-1: none), and says where there can be none. Before the first
// iteration. Error: the host has not so much.
absl::Status PrepareKeeping(const RunContext& run, std::int64_t kept);

// The run goes back to a checkpoint: copies from before are not gone on from any more. No iteration is under way; all ranks call it.
absl::Status ForgetKept(RunContext& run);

// Copies the ranks' state beside the iterations that follow. All iterations that were started have ended.
absl::Status Keep(const RunContext& run, const Position& position);

}  // namespace engine::train

// A snapshot: the parts of a rank's arena that are copied into the host's memory, so that a checkpoint can be written while the
// next iterations run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/plan.h"

namespace engine::plan {

// A part of the arena.
struct SnapshotPart {
  BufferRef buffer;
  // It changes when the next iteration begins, or in its passes (the control block, the model's own states): the copy is made before
  // that. What is not so changes in the update alone.
  bool at_once = false;
};

// Whether the rank, of those that hold the same elements of a bucket, is the one that saves them. `sharded`: ZeRO's shards differ along
// the axes that gradients are reduced over.
bool Saves(const Bucket& bucket, const Coordinates& coordinates, bool sharded);

// Everything of which a checkpoint has something, where the rank is the one that saves it.
std::vector<SnapshotPart> SnapshotOf(const StagePlan& stage, const Coordinates& coordinates);

// Bytes of the host's memory that a rank's snapshot takes: those of the rank that has most.
std::int64_t SnapshotBytes(const Plan& plan);

// The whole state of each rank of a stage, by which training goes on from the end of an iteration: what is made of it anew in
// each iteration is not there.
std::vector<SnapshotPart> StateOf(const StagePlan& stage);
// Bytes of it, of the rank that has most.
std::int64_t StateBytes(const Plan& plan);

// The ranks whose whole states are equal to this one's, itself first: without ZeRO, and in models without states of their own, those that differ
// from it in dp alone.
std::vector<std::int64_t> RanksWithStateOf(const Plan& plan, std::int64_t rank);

// Another host that has a rank's whole state. Hosts have equal numbers of ranks, in order of rank.
struct Keeper {
  std::int64_t host = 0;
  std::int64_t rank = 0;  // whose state that is there
  bool is_sent =
      false;  // the rank sends its state; else that host has it by itself, as a data-parallel copy's
};
// nullopt: all ranks are on one host.
std::optional<Keeper> KeeperOf(const Plan& plan, std::int64_t rank, std::int64_t ranks_per_host);

// The parts lie one behind the other in the host's memory, each from a multiple of so many bytes on.
inline constexpr std::int64_t kSnapshotAlignment = 256;
std::int64_t BytesOf(const std::vector<SnapshotPart>& parts);

}  // namespace engine::plan

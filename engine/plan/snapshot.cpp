#include "engine/plan/snapshot.h"

#include <algorithm>

#include "engine/base/units.h"

namespace engine::plan {

bool Saves(const Bucket& bucket, const Coordinates& coordinates, bool sharded) {
  if (!bucket.owned) return false;
  return std::all_of(graph::kAxes.begin(), graph::kAxes.end(), [&](Axis axis) {
    const bool repeated = bucket.copies.Has(axis) && !(sharded && bucket.reduce.Has(axis));
    return !repeated || coordinates.axis[static_cast<size_t>(axis)] == 0;
  });
}

std::vector<SnapshotPart> SnapshotOf(const StagePlan& stage, const Coordinates& coordinates) {
  std::vector<SnapshotPart> parts;
  const auto add = [&](const BufferRef& buffer, bool at_once) {
    if (buffer.elements > 0) parts.push_back({buffer, at_once});
  };
  add(stage.control, true);
  for (const State& state : stage.states) {
    if (state.spec.life == graph::Lifetime::kRun) add(state.buffer, true);
  }
  for (const Bucket& bucket : stage.buckets) {
    const bool whole = bucket.master.elements == 0 && bucket.parameter_shard.elements == 0;
    if (whole && Saves(bucket, coordinates, false)) add(bucket.parameter, false);
    if (bucket.frozen() || !Saves(bucket, coordinates, bucket.shards > 1)) continue;
    if (!whole) add(bucket.master.elements > 0 ? bucket.master : bucket.parameter_shard, false);
    for (const BufferRef& state : bucket.states) add(state, false);
  }
  return parts;
}

std::vector<SnapshotPart> StateOf(const StagePlan& stage) {
  std::vector<SnapshotPart> parts;
  const auto add = [&](const BufferRef& buffer, bool at_once) {
    if (buffer.elements > 0) parts.push_back({buffer, at_once});
  };
  add(stage.control, true);
  for (const State& state : stage.states) add(state.buffer, true);
  for (const Bucket& bucket : stage.buckets) {
    add(bucket.parameter_shard.elements > 0 ? bucket.parameter_shard : bucket.parameter, false);
    add(bucket.master, false);
    for (const BufferRef& state : bucket.states) add(state, false);
  }
  return parts;
}

std::int64_t BytesOf(const std::vector<SnapshotPart>& parts) {
  std::int64_t bytes = 0;
  for (const SnapshotPart& part : parts) bytes += RoundUp(part.buffer.bytes(), kSnapshotAlignment);
  return bytes;
}

std::int64_t SnapshotBytes(const Plan& plan) {
  std::int64_t most = 0;
  for (const StagePlan& stage : plan.stages) most = std::max(most, BytesOf(SnapshotOf(stage, Coordinates{})));
  return most;
}

std::int64_t StateBytes(const Plan& plan) {
  std::int64_t most = 0;
  for (const StagePlan& stage : plan.stages) most = std::max(most, BytesOf(StateOf(stage)));
  return most;
}

std::vector<std::int64_t> RanksWithStateOf(const Plan& plan, std::int64_t rank) {
  std::vector<std::int64_t> ranks = {rank};
  const StagePlan& stage = plan.stages[static_cast<size_t>(plan.StageOfRank(rank))];
  const bool is_sharded = std::any_of(stage.buckets.begin(), stage.buckets.end(),
                                      [](const Bucket& bucket) { return bucket.shards > 1; });
  for (std::int64_t dp = 0; !is_sharded && stage.states.empty() && dp < plan.mesh.size(Axis::kDp); ++dp) {
    Coordinates coordinates = plan.mesh.CoordinatesOf(rank);
    coordinates.axis[static_cast<size_t>(Axis::kDp)] = dp;
    if (const std::int64_t other = plan.mesh.RankOf(coordinates); other != rank) ranks.push_back(other);
  }
  return ranks;
}

std::optional<Keeper> KeeperOf(const Plan& plan, std::int64_t rank, std::int64_t ranks_per_host) {
  const std::int64_t hosts = plan.mesh.world() / ranks_per_host;
  if (hosts < 2) return std::nullopt;
  const std::int64_t host = rank / ranks_per_host;
  for (const std::int64_t equal : RanksWithStateOf(plan, rank)) {
    if (equal / ranks_per_host != host) return Keeper{equal / ranks_per_host, equal, false};
  }
  // Hosts whose numbers are near each other are near each other in the machine room, and fail together.
  return Keeper{(host + hosts / 2) % hosts, rank, true};
}

}  // namespace engine::plan

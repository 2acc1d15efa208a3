// The cut of a model into chunks of a pipeline: which units each has, which nodes, and which values cross a border.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/compile/placements.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"

namespace engine::compile {

// How many blocks of the graph each of so many chunks has, so that they cost about the same.
std::vector<std::int64_t> BalancedBlocks(std::int64_t chunks, const graph::Graph& graph,
                                         const plan::DeviceProfile& device);

// The units of each chunk, first and end.
using ChunkUnits = std::vector<std::pair<std::int32_t, std::int32_t>>;

// Cuts the chain of units into chunks of so many blocks each, with the entries before and the exits behind them.
ChunkUnits CutUnits(const std::vector<graph::Unit>& units, const std::vector<std::int64_t>& blocks);

std::int32_t ChunkOfUnit(const ChunkUnits& chunks, std::int32_t unit);

// A local graph inside the plan: its value i is Plan::values[base + i]; nodes sorted by chunk and pass.
struct CutGraph {
  LocalGraph local;
  std::int32_t base = 0;
  std::vector<std::vector<std::int32_t>> forward;  // node indices, by chunk
  std::vector<std::vector<std::int32_t>> backward;
  std::vector<std::vector<std::int32_t>> weights;  // empty lists where the backward pass makes all gradients
  std::vector<std::vector<std::int32_t>> prepare;  // once an iteration
  std::vector<std::int32_t> producer_chunk;        // by value; −1 for leaves
  std::vector<plan::Pass> producer_pass;           // by value
};

// Appends the graph's values to the plan's, and transfers for each that another chunk than its producer's reads: from
// chunk to neighbouring chunk, so that those in between relay it. Internal: a forward pass' value goes backward.
absl::StatusOr<CutGraph> CutIntoChunks(LocalGraph local, const ChunkUnits& chunks, plan::Plan* plan);

}  // namespace engine::compile

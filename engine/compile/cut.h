// The cut of a model into chunks of a pipeline: which layers each has, which nodes, and which values cross a border.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/compile/placements.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/plan/schedule.h"

namespace engine::compile {

// The layers of each chunk, first and end.
using ChunkLayers = std::vector<std::pair<std::int64_t, std::int64_t>>;

// As many layers a chunk as `layers_per_chunk` says; where it is empty, `chunks` of about equal cost.
ChunkLayers CutLayers(const std::vector<std::int64_t>& layers_per_chunk, std::int64_t chunks,
                      const graph::Graph& graph, const plan::DeviceProfile& device);

std::int32_t ChunkOfLayer(const ChunkLayers& chunks, std::int32_t layer);

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

// Appends the graph's values to the plan's, and a transfer for each that another chunk than its producer's reads.
// Internal: one goes to a chunk that is no neighbour.
absl::StatusOr<CutGraph> CutIntoChunks(LocalGraph local, const ChunkLayers& chunks, plan::Plan* plan);

}  // namespace engine::compile

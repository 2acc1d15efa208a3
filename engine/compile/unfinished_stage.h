// A part of compile/stage.h: what its passes over a stage have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/compile/cut.h"
#include "engine/plan/arena.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// A stage while it is built: its plan so far, and how far its arena reaches. Buffers are given their places one
// behind the other, so the order of the calls is the order in the arena.
struct UnfinishedStage {
  std::int32_t index = 0;
  plan::StagePlan plan;
  std::int64_t cursor = 0;  // offset of the arena's first free byte

  std::int32_t AddSegment(plan::Segment segment) {
    plan.segments.push_back(std::move(segment));
    return static_cast<std::int32_t>(plan.segments.size() - 1);
  }

  std::int64_t Reserve(std::int64_t bytes) {
    const std::int64_t offset = cursor;
    cursor += plan::Aligned(bytes);
    return offset;
  }

  // A flat buffer. *item: where its bytes are counted (plan::MemoryBreakdown).
  plan::BufferRef ReserveFlat(std::int64_t elements, DType dtype, std::int64_t* item) {
    const std::int64_t bytes = elements * SizeOf(dtype);
    *item += plan::Aligned(bytes);
    return {.offset = Reserve(bytes), .elements = elements, .dtype = dtype};
  }

  // The buffer of a value, which has its elements and dtype (Unplaced in compile/draft.h).
  plan::BufferRef ReserveValue(plan::BufferRef value, std::int64_t* item) {
    value.offset = Reserve(value.bytes());
    *item += plan::Aligned(value.bytes());
    return value;
  }

  // Calls visit(node) for the nodes of the stage's chunks.
  template <typename Visit>
  void ForEachNode(const CutGraph& graph, const Visit& visit) const {
    for (const plan::Chunk& chunk : plan.chunks) {
      const auto c = static_cast<std::size_t>(chunk.index);
      for (const std::vector<std::int32_t>* nodes :
           {&graph.prepare[c], &graph.forward[c], &graph.backward[c], &graph.weights[c]}) {
        for (std::int32_t n : *nodes) visit(graph.local.nodes[static_cast<std::size_t>(n)]);
      }
    }
  }
};

}  // namespace engine::compile

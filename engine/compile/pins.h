// Placements that the placement pass does not derive from costs: those of pinned values, and how a tensor of
// tokens lies where tokens are split.
#pragma once

#include <optional>

#include "engine/compile/placements.h"
#include "engine/graph/graph.h"

namespace engine::compile {

// Along the axis of its sequence where it has one, else whole.
graph::Placement SequenceSplit(const graph::TensorType& type);

// The placement that graph::Value::pin prescribes along this axis; nullopt where it prescribes none.
std::optional<graph::Placement> PinOf(const graph::Value& value, graph::Axis axis,
                                      const PlacementOptions& options);

}  // namespace engine::compile

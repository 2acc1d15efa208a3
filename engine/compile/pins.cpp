#include "engine/compile/pins.h"

namespace engine::compile {
namespace {

// How sequence parallelism splits tokens: by samples where they suffice, as the parts are contiguous then, else by
// the sequence; not at all where there is none.
graph::Placement TokenSplit(const graph::TensorType& type, const plan::Mesh& mesh) {
  std::int64_t parts = mesh.size(graph::Axis::kTp);
  for (const graph::Axis axis : {graph::Axis::kDp, graph::Axis::kEp}) parts *= mesh.size(axis);
  for (int dim = 0; dim < type.shape.rank(); ++dim) {
    if (type.meaning(dim) == graph::Dim::kSample && type.shape[dim] % parts == 0)
      return graph::Placement::S(dim);
  }
  return SequenceSplit(type);
}

}  // namespace

graph::Placement SequenceSplit(const graph::TensorType& type) {
  for (int dim = 0; dim < type.shape.rank(); ++dim) {
    if (graph::IsSequence(type.meaning(dim))) return graph::Placement::S(dim);
  }
  return graph::Placement::R();
}

std::optional<graph::Placement> PinOf(const graph::Value& value, graph::Axis axis,
                                      const PlacementOptions& options) {
  if (axis != graph::Axis::kTp) return std::nullopt;
  switch (value.pin) {
    case graph::Pin::kNone:
      return std::nullopt;
    case graph::Pin::kReplicated:
      return graph::Placement::R();
    case graph::Pin::kResidual:
      return options.sequence_parallel ? TokenSplit(value.type, options.mesh) : graph::Placement::R();
  }
  return std::nullopt;
}

}  // namespace engine::compile

#include "engine/compile/pins.h"

namespace engine::compile {
namespace {

// How sequence parallelism splits tokens: by samples where they suffice, as the parts are contiguous then, else by
// the sequence; not at all where there is none. What experts of several ranks give is summed over ep while tokens are
// split along tp already, so that ep has to have the samples for itself.
graph::Placement TokenSplit(const graph::TensorType& type, const plan::Mesh& mesh) {
  if (mesh.size(graph::Axis::kEp) > 1) return SequenceSplit(type);
  const std::int64_t parts = mesh.size(graph::Axis::kTp) * mesh.size(graph::Axis::kDp);
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

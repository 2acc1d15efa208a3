// From one placement to another: by which collective, at what price, and the nodes that do it.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <optional>
#include <string>
#include <tuple>

#include "engine/compile/local_graph_builder.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Bytes on the wire to bring a tensor of `bytes` (whole) from one placement to another along an axis of this size;
// nullopt: impossible.
std::optional<double> ConversionBytes(graph::Placement from, graph::Placement to, double bytes,
                                      std::int64_t size);

// Whether a tensor of this layout may be exchanged along `axis` so that it lies as `to` there: not where another axis cuts within the split
// that is to go or to come, where `to` does not divide the shape, or of slots. That a collective makes `to`, ConversionBytes says.
bool CanConvert(const plan::Layout& layout, const Shape& shape, graph::Axis axis, graph::Placement to,
                const plan::Mesh& mesh);

// The layout with `to` along `axis`; nullopt: it does not divide the shape.
std::optional<plan::Layout> WithPlacement(const plan::Layout& layout, const Shape& shape, graph::Axis axis,
                                          graph::Placement to, const plan::Mesh& mesh);

// Bytes on the wire to bring a tensor of `bytes` (whole) with this layout to `to` along `axis` by as many collectives as it takes
// (LayoutConverter), at most: where other axes change as well, what they do may save some. nullopt: impossible.
std::optional<double> DetourBytes(const plan::Layout& layout, const Shape& shape, graph::Axis axis,
                                  graph::Placement to, double bytes, const plan::Mesh& mesh);

// Emits the conversions that nodes need, and remembers them, so that readers of one unit and phase share a copy.
//
// Splits that are to go are taken back and sums made first; then dims are cut, from the outermost split of each on, so that what is
// exchanged within an outer split is that split's part alone. Where an axis cuts within a split that is to go or to come, its own split is taken
// back before and cut again behind; of two splits of a dim that are to change places, the inner one is taken back.
class LayoutConverter {
 public:
  // Both must outlive it.
  LayoutConverter(LocalGraphBuilder* local, const plan::Mesh& mesh) : local_(local), mesh_(mesh) {}

  // The value `from` (index in the local graph) with the layout `want`, for nodes of this one's unit and phase; emits
  // what is missing. `share`: whether a copy that is there already may serve, and this one serve others.
  std::int32_t Convert(std::int32_t from, const plan::Layout& want, const graph::Node& reader, bool share);

 private:
  // What a copy was made of, its layout, and the phase and the unit of its readers.
  using Key = std::tuple<std::int32_t, std::string, graph::Phase, std::int32_t>;

  struct Step {
    graph::Axis axis;
    graph::Placement to;
  };
  // The next conversion from one layout of a tensor of this shape to another.
  Step NextStep(const plan::Layout& have, const plan::Layout& want, const Shape& shape) const;
  std::int32_t ConvertAxis(std::int32_t from, graph::Axis axis, graph::Placement to,
                           const graph::Node& reader, bool share);
  // A copy that serves the reader, or −1.
  std::int32_t FindShared(const Key& key, plan::Collective collective) const;

  LocalGraphBuilder* local_;
  const plan::Mesh& mesh_;
  absl::flat_hash_map<Key, std::int32_t> shared_;
};

}  // namespace engine::compile

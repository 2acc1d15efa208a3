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

// Whether a tensor with this layout can be brought to `to` along `axis`.
bool CanConvert(const plan::Layout& layout, const Shape& shape, graph::Axis axis, graph::Placement to,
                const plan::Mesh& mesh);

// Emits the conversions that nodes need, and remembers them, so that readers of one unit and phase share a copy.
class LayoutConverter {
 public:
  // `local` must outlive it.
  explicit LayoutConverter(LocalGraphBuilder* local) : local_(local) {}

  // The value `from` (index in the local graph) with the layout `want`, for nodes of this one's unit and phase; emits
  // what is missing. `share`: whether a copy that is there already may serve, and this one serve others.
  std::int32_t Convert(std::int32_t from, const plan::Layout& want, const graph::Node& reader, bool share);

 private:
  // What a copy was made of, its layout, and the phase and the unit of its readers.
  using Key = std::tuple<std::int32_t, std::string, graph::Phase, std::int32_t>;

  std::int32_t ConvertAxis(std::int32_t from, graph::Axis axis, graph::Placement to,
                           const graph::Node& reader, bool share);
  // A copy that serves the reader, or −1.
  std::int32_t FindShared(const Key& key, plan::Collective collective) const;

  LocalGraphBuilder* local_;
  absl::flat_hash_map<Key, std::int32_t> shared_;
};

}  // namespace engine::compile
